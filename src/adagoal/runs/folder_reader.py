"""Read a run folder: the last committed state, every file checked against the manifest before it is used.

:func:`read_saved_run` needs no lock and may be called while a run writes there. It sees the folder as one save left it;
if a save comes in between, it reads again. :mod:`adagoal.runs.run_folder` describes how a folder is written.

The manifest names the files of the run, with their sizes and hashes::

    "format": 2, "kind": "exploration", "generation": 13,
    "states":  [{"checkpoint.npz": {"generation": 13, "size": ..., "sha256": ...}}, {... the checkpoint before it}],
    "results": {"result.json": {"generation": 12, "size": ..., "sha256": ...}, ...},
    "obsolete": [...], "checksum": ...

A generation is the number of a save. The generation of an entry is the save that wrote the file; files that did not
change are not written again. The checksum covers everything else. A manifest is accepted only if it is byte for byte
what this module would write. That guards against damage, not against forgery: whoever alters a file can alter the
manifest as well. Therefore the content of every file is also checked against a schema.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, TypeVar

from numpy.typing import NDArray

from adagoal.core import file_formats, file_io
from adagoal.core.argument_checks import check_folder_path
from adagoal.core.errors import FolderWarning, InputError
from adagoal.core.file_formats import check_json_value, object_schema

MANIFEST_FORMAT = 2  # of the manifest and of every result.json; raise it when a file changes its name or meaning
MANIFEST_FILE, MANIFEST_BACKUP_FILE = "manifest.json", "manifest.backup.json"
CHECKPOINTS_FOLDER = "checkpoints"  # holds checkpoints, and result files before the commit

LoadedT = TypeVar("LoadedT")


class RunKind(StrEnum):
    """What a folder holds."""

    EXPLORATION = "exploration"
    TRAINING = "training"


@dataclass(frozen=True)
class ManifestEntry:
    """One file, as it was written."""

    generation: int
    size: int
    sha256: str


ManifestEntries = dict[str, ManifestEntry]


@dataclass(frozen=True)
class Manifest:
    """The files of a run folder."""

    kind: str
    generation: int
    checkpoints: tuple[ManifestEntries, ...]  # files of the last checkpoint and of the one before it
    results: ManifestEntries
    obsolete_files: tuple[str, ...] = ()  # files of an earlier run, which this commit replaces

    def to_bytes(self) -> bytes:
        """Return the content of the file; equal manifests give equal bytes."""
        data = {
            "format": MANIFEST_FORMAT,
            "kind": self.kind,
            "generation": self.generation,
            "states": [_entries_to_json(checkpoint) for checkpoint in self.checkpoints],
            "results": _entries_to_json(self.results),
            "obsolete": list(self.obsolete_files),
        }
        checksum = hashlib.sha256(json.dumps(data, indent=1).encode()).hexdigest()
        return json.dumps({**data, "checksum": checksum}, indent=1).encode() + b"\n"


def _entries_to_json(entries: ManifestEntries) -> dict[str, Any]:
    return {name: vars(entry) for name, entry in entries.items()}


def is_valid_file_name(name: str) -> bool:
    """Return True if a file of a run may have this name; a name cannot lead out of the folder."""
    valid = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.[a-z]{1,8}", name)
    return valid is not None and name not in (MANIFEST_FILE, MANIFEST_BACKUP_FILE)


def _manifest_schema() -> dict[str, Any]:
    # Numbers are bounded on both sides, because a forged manifest may name any.
    entry = object_schema(
        generation={"type": "integer", "minimum": 0, "maximum": 10**12},
        size={"type": "integer", "minimum": 0, "maximum": 2**50},
        sha256={"type": "string", "minLength": 64, "maxLength": 64},
    )
    entries = {"type": "object", "additionalProperties": entry}
    return object_schema(
        format={"enum": [MANIFEST_FORMAT]},
        kind={"enum": [kind.value for kind in RunKind]},
        generation={"type": "integer", "minimum": 1, "maximum": 10**12},
        states={"type": "array", "maxItems": 2, "items": entries},
        results=entries,
        obsolete={"type": "array", "maxItems": 1000, "items": {"type": "string"}},
        checksum={"type": "string"},
    )


def read_manifest(path: Path) -> tuple[Manifest, bytes]:
    """Return a manifest and its bytes."""
    with file_io.open_regular_file(path) as (file, size), file_io.report_read_errors(path):
        # Before reading: a forged manifest of any size must not fill the memory.
        if size > 2**20:
            raise ValueError("larger than a manifest can be")
        raw = file.read(size)
        data = file_io.parse_json(raw)
        # Before the schema, which would call a folder of a later version damaged.
        number = data.get("format") if isinstance(data, dict) else None
        if isinstance(number, int) and number != MANIFEST_FORMAT:
            text = f"format {number} is not known to this version (it reads format {MANIFEST_FORMAT})"
            raise InputError(f"{path}: {text}")
        check_json_value(_manifest_schema(), data)
        *checkpoints, results = (
            {name: ManifestEntry(**entry) for name, entry in entries.items()}
            for entries in (*data["states"], data["results"])
        )
        names = [*(name for entries in (*checkpoints, results) for name in entries), *data["obsolete"]]
        manifest = Manifest(data["kind"], data["generation"], tuple(checkpoints), results, tuple(data["obsolete"]))
        if not all(map(is_valid_file_name, names)):
            raise ValueError("it names files that cannot be in a run folder")
        # Comparing the bytes covers the checksum, and also what a JSON parser forgives: spaces, other orders of keys.
        if manifest.to_bytes() != raw:
            raise InputError(f"{path}: altered or damaged (its checksum does not match)")
    return manifest, raw


def staged_file_path(folder: Path, name: str, generation: int) -> Path:
    """Return where a save writes a file: under a name that no other save uses."""
    # The number of the save in the name keeps the files of the manifest in force untouched until the commit.
    stem, _, ending = name.partition(".")
    return folder / CHECKPOINTS_FOLDER / f"{stem}-{generation:06d}.{ending}"


@dataclass
class FolderFiles:
    """Files that belong together, each with its entry in the manifest."""

    folder: Path
    entries: ManifestEntries
    candidate_paths: Mapping[str, list[Path]]  # the first path that holds what the manifest says counts

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def load_text(self, name: str, max_bytes: int = file_io.MAX_JSON_BYTES) -> str:
        """Read a text file."""
        with self.open_verified(name) as (path, file, size), file_io.report_read_errors(path):
            if size > max_bytes:
                raise ValueError(f"larger than {max_bytes} bytes")
            return file.read(size).decode()

    def load_json(self, name: str, schema: Mapping[str, Any] | None = None) -> Any:
        """Read a JSON file; see :func:`adagoal.core.file_formats.check_json_value` for the schema."""
        with self.open_verified(name) as (path, file, size), file_io.report_read_errors(path):
            # One byte more than allowed, so parse_json refuses a large file instead of parsing a part of it.
            data = file_io.parse_json(file.read(min(size, file_io.MAX_JSON_BYTES + 1)))
            if schema is not None:
                check_json_value(schema, data)
            return data

    def load_arrays(
        self,
        name: str,
        schema: file_formats.ArraySchema | None = None,
        sizes: Mapping[str, int] | None = None,
        facts_schema: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, NDArray[Any]], Any]:
        """Read the arrays of an ``.npz`` and the JSON facts stored with them, None without facts.

        ``sizes`` are the sizes of the array schema that are known from elsewhere.
        """
        known: file_formats.AxisSizes = {}

        # Shapes and types are checked in the headers, before anything is unpacked: a forged shape costs no memory.
        def check_headers(headers: Mapping[str, file_formats.ArrayHeader]) -> None:
            if schema is not None:
                facts_entry = {"__facts__": file_formats.ArraySpec("u", optional=facts_schema is None)}
                known.update(file_formats.check_headers({**facts_entry, **schema}, headers, sizes))

        with self.open_verified(name) as (path, file, size), file_io.report_read_errors(path):
            arrays = file_formats.read_npz(file, size, check_headers)
            facts = file_io.take_out_facts(arrays) if "__facts__" in arrays else None
            if facts_schema is not None:
                check_json_value(facts_schema, facts)
            if schema is not None:
                file_formats.check_array_values(schema, arrays, known)
            return arrays, facts

    @contextlib.contextmanager
    def open_verified(self, name: str) -> Iterator[tuple[Path, IO[bytes], int]]:
        """Open a file whose content is what the manifest says. The caller reads from the handle that was checked."""
        if name not in self.entries:
            raise InputError(f"{self.folder}: holds no {name}")
        with contextlib.ExitStack() as stack:
            problem: InputError | None = None
            for path in self.candidate_paths[name]:
                try:
                    file, size = stack.enter_context(file_io.open_regular_file(path))
                    _verify_file_content(path, file, size, self.entries[name])
                    break
                except InputError as error:
                    # The error about the regular path is reported; the other paths are only fallbacks.
                    problem = problem or error
            else:
                assert problem is not None
                raise problem
            yield path, file, size


def _verify_file_content(path: Path, file: IO[bytes], size: int, entry: ManifestEntry) -> None:
    with file_io.report_read_errors(path):
        if size != entry.size or hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:  # type: ignore[arg-type]
            raise InputError(f"{path}: altered or damaged (its content does not match the manifest)")
        file.seek(0)


@dataclass
class SavedRun:
    """A run in its folder."""

    path: Path
    manifest: Manifest
    damage_notes: list[str] = field(default_factory=list)  # what was found damaged, and what is used instead
    intact_checkpoint: int = 0  # index of the checkpoint that :meth:`checkpoint_files` accepted

    @property
    def kind(self) -> str:
        """ "exploration" or "training"."""
        return self.manifest.kind

    def checkpoint_files(self) -> FolderFiles:
        """Return the files of the newest checkpoint that is intact."""
        problem = InputError(f"{self.path}: holds no checkpoint, so it cannot be resumed; start the run again")
        for index, entries in enumerate(self.manifest.checkpoints):
            paths = {name: [staged_file_path(self.path, name, entry.generation)] for name, entry in entries.items()}
            files = FolderFiles(self.path, entries, paths)
            # All files before any is used: a checkpoint is accepted as a whole, or not at all.
            try:
                for name in entries:
                    with files.open_verified(name):
                        pass
            except InputError as error:
                if index == 0:
                    problem = error
                continue
            if index:
                self.damage_notes.append(f"{problem}; the checkpoint before it is used")
            self.intact_checkpoint = index
            return files
        raise problem

    def result_files(self) -> FolderFiles:
        """Return the files of the last result."""
        paths = {}
        for name, entry in self.manifest.results.items():
            own, staged = self.path / name, staged_file_path(self.path, name, entry.generation)
            # The own name twice: a writer may rename the staged file between the first two attempts.
            paths[name] = [own, staged, own]
        return FolderFiles(self.path, self.manifest.results, paths)

    def warn_about_damage(self) -> None:
        """Warn once about what was found damaged, and what is used instead."""
        for note in self.damage_notes:
            warnings.warn(note, FolderWarning, stacklevel=3)
        self.damage_notes.clear()


def find_saved_run(path: Path) -> SavedRun | None:
    """Return the run in a folder, None if there is no manifest; a damaged manifest is replaced by its copy."""
    # lexists, because a link without its target is damage, not an empty folder.
    if not any(os.path.lexists(path / name) for name in (MANIFEST_FILE, MANIFEST_BACKUP_FILE)):
        return None
    try:
        return SavedRun(path, read_manifest(path / MANIFEST_FILE)[0])
    except InputError as error:
        try:
            manifest, _ = read_manifest(path / MANIFEST_BACKUP_FILE)
        except InputError:
            raise error from None
        return SavedRun(path, manifest, [f"{error}; its copy {MANIFEST_BACKUP_FILE} is used"])


def require_run_folder(path: str | Path) -> Path:
    """Return the absolute path of a folder that exists."""
    folder = check_folder_path("folder", path)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "folder")
    return folder


def is_training_folder(folder: Path) -> bool:
    """Return True if a folder holds training, finished or not."""
    saved = find_saved_run(folder)
    return saved is not None and saved.kind == RunKind.TRAINING


def read_saved_run(path: Path, load: Callable[[SavedRun], LoadedT]) -> LoadedT:
    """Return ``load(saved_run)``; if a save came in between and it failed, call it again."""
    while True:
        before = last_commit_stamp(path)
        try:
            saved = find_saved_run(path)
            if saved is None:
                raise no_run(path)
            return load(saved)
        except InputError:
            # A commit removes files that a reader of the state before it may still want. Only an error without a
            # commit in between is about the folder itself.
            if last_commit_stamp(path) == before:
                raise


def no_run(path: Path, name: str | None = None) -> InputError:
    """Return the error for a folder without a manifest; ``name`` is the argument that gave the folder."""
    return InputError(f"no adagoal run in {path} ({MANIFEST_FILE} is missing)", name)


def last_commit_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes with every commit, None if there is no manifest."""
    try:
        status = os.stat(path / MANIFEST_FILE, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    # A commit renames another file to this name, so the inode changes even if the clock is too coarse to tell.
    return status.st_ino, status.st_mtime_ns, status.st_size
