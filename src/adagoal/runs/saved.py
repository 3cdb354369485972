"""Reading a run folder: the last committed state, every file checked against the manifest before it is used.

:func:`read` needs no lock and may be called while a run writes there. It sees the folder as one save left it: a save in
the middle of a reading starts the reading again. How the folder is written is told in :mod:`adagoal.runs.folder`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
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

T = TypeVar("T")


def staged(folder: Path, name: str, generation: int) -> Path:
    """Where a save writes a file: under a name that no other save uses."""
    stem, _, ending = name.partition(".")
    return folder / DATA / f"{stem}-{generation:06d}.{ending}"


@dataclass
class Files:
    """Files that belong together, each with its entry in the manifest."""

    folder: Path
    entries: Entries
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


def _check_content(path: Path, file: IO[bytes], size: int, entry: Entry) -> None:
    """Whether an open file is the one that was saved."""
    with files.reading(path):
        if size != entry.size or hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:  # type: ignore[arg-type]
            raise InputError(f"{path}: altered or damaged (its content does not match the manifest)")
        file.seek(0)


@dataclass
class Saved:
    """A run as it is in its folder."""

    path: Path
    manifest: Manifest
    notes: list[str] = field(default_factory=list)
    """Lines for the user about what was found damaged, and what is used instead."""
    intact: int = 0
    """Which of the manifest's states :meth:`state` found to be good."""

    @property
    def kind(self) -> str:
        """ "exploration" or "training"."""
        return self.manifest.kind

    def state(self) -> Files:
        """The files of the newest checkpoint that is intact."""
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
        entries = self.manifest.results
        places = {}
        for name, entry in entries.items():
            own = self.path / name
            places[name] = [own, staged(self.path, name, entry.generation), own]  # it may get its name meanwhile
        return Files(self.path, entries, places)


def find(path: Path) -> Saved | None:
    """The run in a folder, None where there is none; a damaged manifest is replaced by its copy, with a note."""
    if not any(os.path.lexists(path / name) for name in (manifests.NAME, manifests.BACKUP)):
        return None
    try:
        manifest, _ = manifests.read(path / manifests.NAME)
        return Saved(path, manifest)
    except InputError as error:
        try:
            manifest, _ = manifests.read(path / manifests.BACKUP)
        except InputError:
            raise error from None
        return Saved(path, manifest, [f"{error}; its copy {manifests.BACKUP} is used"])


def read(path: Path, load: Callable[[Saved], T]) -> T:
    """What ``load`` makes of the run in a folder; it is called again where a save came in between."""
    while True:
        before = stamp(path)
        try:
            saved = find(path)
            if saved is None:
                raise no_run(path)
            return load(saved)
        except InputError:
            if stamp(path) == before:
                raise


def no_run(path: Path, name: str | None = None) -> InputError:
    """The error for a folder without a manifest, whatever else it holds; ``name`` is the argument that gave it."""
    return InputError(f"no adagoal run in {path} ({manifests.NAME} is missing)", name)


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
