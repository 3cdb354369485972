"""Reading a run folder: the last committed state, every file checked against the manifest before it is used.

:func:`read_saved_run` needs no lock and may be called while a run writes there. It sees the folder as one save left it: a save in
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
from adagoal.runs.manifest import Manifest, ManifestEntries, ManifestEntry

CHECKPOINTS_FOLDER = "checkpoints"
"""The folder within the folder: checkpoints, and files on their way to their names."""

T = TypeVar("T")


def staged_file_path(folder: Path, name: str, generation: int) -> Path:
    """Where a save writes a file: under a name that no other save uses."""
    stem, _, ending = name.partition(".")
    return folder / CHECKPOINTS_FOLDER / f"{stem}-{generation:06d}.{ending}"


@dataclass
class FolderFiles:
    """Files that belong together, each with its entry in the manifest."""

    folder: Path
    entries: ManifestEntries
    candidate_paths: Mapping[str, list[Path]]
    """Where each may be: the first place that holds what the manifest says counts."""

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def load_json(self, name: str, rules: Mapping[str, Any] | None = None) -> Any:
        """A JSON file; ``rules`` is its schema (see :func:`adagoal.core.schema.check_json_value`)."""
        with self._open_verified(name) as (path, file, size), files.report_read_errors(path):
            data = files.parse_json(file.read(min(size, files.MAX_JSON_BYTES + 1)))
            if rules is not None:
                schema.check_json_value(rules, data)
            return data

    def load_arrays(
        self,
        name: str,
        rules: schema.ArraySchema | None = None,
        sizes: Mapping[str, int] | None = None,
        fact_rules: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, NDArray[Any]], Any]:
        """The arrays of an ``.npz`` and the facts beside them, None where it has none.

        ``rules`` is the schema of the arrays, with the ``sizes`` that are known; ``fact_rules`` that of the facts.
        """
        found: schema.AxisSizes = {}

        def fits(heads: Mapping[str, npz.ArrayHeader]) -> None:
            if rules is not None:
                beside = {"__facts__": schema.ArraySpec("u", optional=fact_rules is None)}
                found.update(schema.check_headers({**beside, **rules}, heads, sizes))

        with self._open_verified(name) as (path, file, size), files.report_read_errors(path):
            arrays = npz.read_npz(file, size, fits)
            facts = files.take_out_facts(arrays) if "__facts__" in arrays else None
            if fact_rules is not None:
                schema.check_json_value(fact_rules, facts)
            if rules is not None:
                schema.check_array_values(rules, arrays, found)
            return arrays, facts

    def verify_hashes(self) -> None:
        """Check every file against the manifest."""
        for name in self.entries:
            with self._open_verified(name):
                pass

    @contextlib.contextmanager
    def _open_verified(self, name: str) -> Iterator[tuple[Path, IO[bytes], int]]:
        """The file, found to be what the manifest says; what is then read is what was checked."""
        if name not in self.entries:
            raise InputError(f"{self.folder}: holds no {name}")
        with contextlib.ExitStack() as stack:
            problem: InputError | None = None
            for path in self.candidate_paths[name]:
                try:
                    file, size = stack.enter_context(files.open_regular_file(path))
                    _verify_file_content(path, file, size, self.entries[name])
                    break
                except InputError as error:
                    problem = problem or error
            else:
                assert problem is not None
                raise problem
            yield path, file, size


def _verify_file_content(path: Path, file: IO[bytes], size: int, entry: ManifestEntry) -> None:
    """Whether an open file is the one that was saved."""
    with files.report_read_errors(path):
        if size != entry.size or hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:  # type: ignore[arg-type]
            raise InputError(f"{path}: altered or damaged (its content does not match the manifest)")
        file.seek(0)


@dataclass
class SavedRun:
    """A run as it is in its folder."""

    path: Path
    manifest: Manifest
    damage_notes: list[str] = field(default_factory=list)
    """Lines for the user about what was found damaged, and what is used instead."""
    intact_checkpoint: int = 0
    """Which of the manifest's states :meth:`checkpoint_files` found to be good."""

    @property
    def kind(self) -> str:
        """ "exploration" or "training"."""
        return self.manifest.kind

    def checkpoint_files(self) -> FolderFiles:
        """The files of the newest checkpoint that is intact."""
        problem = InputError(f"{self.path}: holds no checkpoint")
        for place, entries in enumerate(self.manifest.checkpoints):
            places = {name: [staged_file_path(self.path, name, entry.generation)] for name, entry in entries.items()}
            found = FolderFiles(self.path, entries, places)
            try:
                found.verify_hashes()
            except InputError as error:
                if place == 0:
                    problem = error
                continue
            if place:
                self.damage_notes.append(f"{problem}; the checkpoint before it is used")
            self.intact_checkpoint = place
            return found
        raise problem

    def result_files(self) -> FolderFiles:
        """The files of the last result: each under its own name or, if the save was cut off, where it was written."""
        entries = self.manifest.results
        places = {}
        for name, entry in entries.items():
            own = self.path / name
            places[name] = [
                own,
                staged_file_path(self.path, name, entry.generation),
                own,
            ]  # it may get its name meanwhile
        return FolderFiles(self.path, entries, places)


def find_saved_run(path: Path) -> SavedRun | None:
    """The run in a folder, None where there is none; a damaged manifest is replaced by its copy, with a note."""
    if not any(os.path.lexists(path / name) for name in (manifests.MANIFEST_FILE, manifests.MANIFEST_BACKUP_FILE)):
        return None
    try:
        manifest, _ = manifests.read_manifest(path / manifests.MANIFEST_FILE)
        return SavedRun(path, manifest)
    except InputError as error:
        try:
            manifest, _ = manifests.read_manifest(path / manifests.MANIFEST_BACKUP_FILE)
        except InputError:
            raise error from None
        return SavedRun(path, manifest, [f"{error}; its copy {manifests.MANIFEST_BACKUP_FILE} is used"])


def read_saved_run(path: Path, load: Callable[[SavedRun], T]) -> T:
    """What ``load`` makes of the run in a folder; it is called again where a save came in between."""
    while True:
        before = last_commit_stamp(path)
        try:
            saved = find_saved_run(path)
            if saved is None:
                raise no_run(path)
            return load(saved)
        except InputError:
            if last_commit_stamp(path) == before:
                raise


def no_run(path: Path, name: str | None = None) -> InputError:
    """The error for a folder without a manifest, whatever else it holds; ``name`` is the argument that gave it."""
    return InputError(f"no adagoal run in {path} ({manifests.MANIFEST_FILE} is missing)", name)


def warn_about_damage(saved: SavedRun) -> None:
    """Warn about what was found damaged, and what is used instead."""
    for note in saved.damage_notes:
        warnings.warn(note, FolderWarning, stacklevel=3)
    saved.damage_notes.clear()


def last_commit_stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes with every commit; None where there is none."""
    try:
        found = os.stat(path / manifests.MANIFEST_FILE, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
