"""Reading a run folder: the last committed state, every file checked against the manifest before it is used.

:func:`read` needs no lock and may be called while a run writes there. It sees the folder as one save left it: a save in
the middle of a reading starts the reading again. How the folder is written is told in :mod:`adagoal.runs.folder`.

Folders of format 1 (before there were manifests) are read as well. They have no hashes, so damage shows only where it
breaks a file or the schema that the caller gives; the next save brings them to format 2.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from numpy.typing import NDArray

from adagoal.core import files, npz, schema
from adagoal.core.errors import FolderWarning, InputError
from adagoal.runs import manifest as manifests
from adagoal.runs.manifest import Entries, Entry, Manifest

DATA = "checkpoints"
"""The folder within the folder: checkpoints, and files on their way to their names."""
LEGACY_STATE = {
    "checkpoint.npz": "checkpoint.npz",
    "certified.json": "certified/result.json",
    "certified.npz": "certified/model.npz",
}
"""Format 1: where the files of a checkpoint were."""
LEGACY_RESULTS = ("result.json", "model.npz", "policy.npz", "goals.npz", "view.json", "report.html", "log.csv")

T = TypeVar("T")


def staged(folder: Path, name: str, generation: int) -> Path:
    """Where a save writes a file: under a name that no other save uses."""
    stem, _, ending = name.partition(".")
    return folder / DATA / f"{stem}-{generation:06d}.{ending}"


@dataclass
class Files:
    """Files that belong together. ``entries[name]`` is None where nothing is known about a file (format 1)."""

    folder: Path
    entries: Mapping[str, Entry | None]
    places: Mapping[str, list[Path]]
    """Where each may be: the first place that holds what the manifest says counts."""

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def json(self, name: str, rules: Mapping[str, Any] | None = None) -> Any:
        """A JSON file; ``rules`` is its schema (see :func:`adagoal.core.schema.check_json`)."""
        with self._open(name) as (path, file, size), files.reading(path):
            data = files.parsed(file.read(min(size, files.JSON_SIZE + 1)))
            if rules is not None:
                schema.check_json(rules, data)
            return data

    def arrays(
        self,
        name: str,
        rules: schema.Schema | None = None,
        sizes: Mapping[str, int] | None = None,
        fact_rules: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, NDArray[Any]], Any]:
        """The arrays of an ``.npz`` and the facts beside them, None where it has none.

        ``rules`` is the schema of the arrays, with the ``sizes`` that are known; ``fact_rules`` that of the facts.
        """
        found: schema.Sizes = {}

        def fits(heads: Mapping[str, npz.Head]) -> None:
            if rules is not None:
                beside = {"__facts__": schema.Array("u", optional=fact_rules is None)}
                found.update(schema.check_heads({**beside, **rules}, heads, sizes))

        with self._open(name) as (path, file, size), files.reading(path):
            arrays = npz.read(file, size, fits)
            facts = files.facts_of(arrays) if "__facts__" in arrays else None
            if fact_rules is not None:
                schema.check_json(fact_rules, facts)
            if rules is not None:
                schema.check_values(rules, arrays, found)
            return arrays, facts

    def verify(self) -> None:
        """Check every file against the manifest."""
        for name in self.entries:
            with self._open(name):
                pass

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[tuple[Path, IO[bytes], int]]:
        """The file, found to be what the manifest says; what is then read is what was checked."""
        if name not in self.entries:
            raise InputError(f"{self.folder}: holds no {name}")
        with contextlib.ExitStack() as stack:
            problem: InputError | None = None
            for path in self.places[name]:
                try:
                    file, size = stack.enter_context(files.regular(path))
                    _check_content(path, file, size, self.entries[name])
                    break
                except InputError as error:
                    problem = problem or error
            else:
                assert problem is not None
                raise problem
            yield path, file, size


def _check_content(path: Path, file: IO[bytes], size: int, entry: Entry | None) -> None:
    """Whether an open file is the one that was saved."""
    if entry is not None:
        with files.reading(path):
            if size != entry.size or hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:  # type: ignore[arg-type]
                raise InputError(f"{path}: altered or damaged (its content does not match the manifest)")
            file.seek(0)


@dataclass
class Saved:
    """A run as it is in its folder."""

    path: Path
    kind: str
    manifest: Manifest | None
    """None: a folder of format 1."""
    notes: list[str] = field(default_factory=list)
    """Lines for the user about what was found damaged, and what is used instead."""
    intact: int = 0
    """Which of the manifest's states :meth:`state` found to be good."""

    def state(self) -> Files:
        """The files of the newest checkpoint that is intact."""
        if self.manifest is None:
            places = {name: [self.path / place] for name, place in LEGACY_STATE.items()}
            there = {name: at for name, at in places.items() if name == "checkpoint.npz" or os.path.lexists(at[0])}
            return Files(self.path, dict.fromkeys(there), there)
        problem = InputError(f"{self.path}: holds no checkpoint")
        for place, entries in enumerate(self.manifest.states):
            places = {name: [staged(self.path, name, entry.generation)] for name, entry in entries.items()}
            found = Files(self.path, entries, places)
            try:
                found.verify()
            except InputError as error:
                if place == 0:
                    problem = error
                continue
            if place:
                self.notes.append(f"{problem}; the checkpoint before it is used")
            self.intact = place
            return found
        raise problem

    def results(self) -> Files:
        """The files of the last result: each under its own name or, if the save was cut off, where it was written."""
        if self.manifest is None:
            there = {name: [self.path / name] for name in LEGACY_RESULTS if os.path.lexists(self.path / name)}
            return Files(self.path, dict.fromkeys(there), there)
        entries: Entries = self.manifest.results
        places = {}
        for name, entry in entries.items():
            own = self.path / name
            places[name] = [own, staged(self.path, name, entry.generation), own]  # it may get its name meanwhile
        return Files(self.path, entries, places)


def find(path: Path) -> Saved | None:
    """The run in a folder, None where there is none; a damaged manifest is replaced by its copy, with a note."""
    if not any(os.path.lexists(path / name) for name in (manifests.NAME, manifests.BACKUP)):
        if not any(os.path.lexists(path / name) for name in ("result.json", "checkpoint.npz")):
            return None
        return Saved(path, _legacy_kind(path), None)
    try:
        manifest, _ = manifests.read(path / manifests.NAME)
        return Saved(path, manifest.kind, manifest)
    except InputError as error:
        try:
            manifest, _ = manifests.read(path / manifests.BACKUP)
        except InputError:
            raise error from None
        return Saved(path, manifest.kind, manifest, [f"{error}; its copy {manifests.BACKUP} is used"])


def read(path: Path, load: Callable[[Saved], T]) -> T:
    """What ``load`` makes of the run in a folder; it is called again where a save came in between."""
    while True:
        before = stamp(path)
        try:
            saved = find(path)
            if saved is None:
                raise InputError(f"{path}: holds no run")
            return load(saved)
        except InputError:
            if stamp(path) == before:
                raise


def tell(saved: Saved) -> None:
    """Warn about what was found damaged, and what is used instead."""
    for note in saved.notes:
        warnings.warn(note, FolderWarning, stacklevel=3)
    saved.notes.clear()


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes with every commit; None where there is none."""
    try:
        found = os.stat(path / manifests.NAME, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _legacy_kind(path: Path) -> str:
    """Format 1 did not say what kind of run it was, but its files do."""
    if os.path.lexists(path / "policy.npz"):
        return "training"
    if os.path.lexists(path / "model.npz") or not os.path.lexists(path / "checkpoint.npz"):
        return "exploration"
    at = path / "checkpoint.npz"
    with files.regular(at) as (file, _), files.reading(at), zipfile.ZipFile(file) as archive:
        return "exploration" if "__facts__.npy" in archive.namelist() else "training"
