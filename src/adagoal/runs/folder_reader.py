"""Reading a run folder: the last committed state, every file checked against the manifest before it is used.

:func:`read_saved_run` needs no lock and may be called while a run writes there. It sees the folder as one save left it:
a save in the middle of a reading starts the reading again. How the folder is written is told in
:mod:`adagoal.runs.run_folder`.
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
from pathlib import Path
from typing import IO, Any, TypeVar

from numpy.typing import NDArray

from adagoal.core import file_formats, file_io
from adagoal.core.errors import FolderWarning, InputError
from adagoal.core.file_formats import check_json_value
from adagoal.runs import folder_reader as manifests

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
        """A JSON file; ``rules`` is its schema (see :func:`adagoal.core.file_formats.check_json_value`)."""
        with self._open_verified(name) as (path, file, size), file_io.report_read_errors(path):
            data = file_io.parse_json(file.read(min(size, file_io.MAX_JSON_BYTES + 1)))
            if rules is not None:
                file_formats.check_json_value(rules, data)
            return data

    def load_arrays(
        self,
        name: str,
        rules: file_formats.ArraySchema | None = None,
        sizes: Mapping[str, int] | None = None,
        fact_rules: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, NDArray[Any]], Any]:
        """The arrays of an ``.npz`` and the facts beside them, None where it has none.

        ``rules`` is the schema of the arrays, with the ``sizes`` that are known; ``fact_rules`` that of the facts.
        """
        found: file_formats.AxisSizes = {}

        def fits(heads: Mapping[str, file_formats.ArrayHeader]) -> None:
            if rules is not None:
                beside = {"__facts__": file_formats.ArraySpec("u", optional=fact_rules is None)}
                found.update(file_formats.check_headers({**beside, **rules}, heads, sizes))

        with self._open_verified(name) as (path, file, size), file_io.report_read_errors(path):
            arrays = file_formats.read_npz(file, size, fits)
            facts = file_io.take_out_facts(arrays) if "__facts__" in arrays else None
            if fact_rules is not None:
                file_formats.check_json_value(fact_rules, facts)
            if rules is not None:
                file_formats.check_array_values(rules, arrays, found)
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
                    file, size = stack.enter_context(file_io.open_regular_file(path))
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
    with file_io.report_read_errors(path):
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


# The manifest of a run folder: which files belong to the run, with their sizes and hashes.
#
#     "format": 2, "kind": "exploration", "generation": 13,
#     "states":  [{"checkpoint.npz": {"generation": 13, "size": ..., "sha256": ...}}, {... the one before it}],
#     "results": {"result.json": {"generation": 12, "size": ..., "sha256": ...}, ...},
#     "obsolete": [...], "checksum": ...
#
# A generation is a save. An entry's generation is the save that wrote the file: what did not change is not written
# again. The checksum is over everything else; a manifest is accepted only if it is byte for byte what this module would
# write. It guards against damage, not against forgery: whoever alters a file can alter the manifest with it. That is
# why what was read is checked against its schema as well.


MANIFEST_FORMAT = 2
"""Of the manifest and of every ``result.json``."""
KINDS = ("exploration", "training")
MANIFEST_FILE, MANIFEST_BACKUP_FILE = "manifest.json", "manifest.backup.json"

_FILE_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.[a-z]{1,8}")
_ENTRY_SCHEMA = {
    "type": "object",
    "required": ["generation", "size", "sha256"],
    "additionalProperties": False,
    "properties": {
        "generation": {"type": "integer", "minimum": 0, "maximum": 10**12},
        "size": {"type": "integer", "minimum": 0, "maximum": 2**50},
        "sha256": {"type": "string", "minLength": 64, "maxLength": 64},
    },
}
_ENTRIES_SCHEMA = {"type": "object", "additionalProperties": _ENTRY_SCHEMA}
_MANIFEST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["format", "kind", "generation", "states", "results", "obsolete", "checksum"],
    "additionalProperties": False,
    "properties": {
        "format": {"enum": [MANIFEST_FORMAT]},
        "kind": {"enum": list(KINDS)},
        "generation": {"type": "integer", "minimum": 1, "maximum": 10**12},
        "states": {"type": "array", "maxItems": 2, "items": _ENTRIES_SCHEMA},
        "results": _ENTRIES_SCHEMA,
        "obsolete": {"type": "array", "maxItems": 1000, "items": {"type": "string"}},
        "checksum": {"type": "string"},
    },
}


@dataclass(frozen=True)
class ManifestEntry:
    """One file, as it was written."""

    generation: int
    size: int
    sha256: str


ManifestEntries = dict[str, ManifestEntry]


@dataclass(frozen=True)
class Manifest:
    """What a run folder holds."""

    kind: str
    generation: int
    checkpoints: tuple[ManifestEntries, ...]
    """The files of the last checkpoint and of the one before it."""
    results: ManifestEntries
    obsolete_files: tuple[str, ...] = ()
    """Files of an earlier run, which this commit makes void."""

    def to_bytes(self) -> bytes:
        """The file; equal manifests give equal bytes."""
        data = {
            "format": MANIFEST_FORMAT,
            "kind": self.kind,
            "generation": self.generation,
            "states": [_entries_to_json(state) for state in self.checkpoints],
            "results": _entries_to_json(self.results),
            "obsolete": list(self.obsolete_files),
        }
        checksum = hashlib.sha256(_dump_manifest_json(data)).hexdigest()
        return _dump_manifest_json({**data, "checksum": checksum}) + b"\n"


def is_valid_file_name(name: str) -> bool:
    """Whether a file may have this name in a run folder; nothing outside the folder can be named."""
    return _FILE_NAME_PATTERN.fullmatch(name) is not None and name not in (MANIFEST_FILE, MANIFEST_BACKUP_FILE)


def read_manifest(path: Path) -> tuple[Manifest, bytes]:
    """A manifest and its bytes; what is wrong with it is one line."""
    with file_io.open_regular_file(path) as (file, size), file_io.report_read_errors(path):
        if size > 2**20:
            raise ValueError("larger than a manifest can be")
        raw = file.read(size)
        data = file_io.parse_json(raw)
        found = data.get("format") if isinstance(data, dict) else None
        if isinstance(found, int) and found != MANIFEST_FORMAT:
            raise InputError(f"{path}: format {found} is not known to this version (it reads format {MANIFEST_FORMAT})")
        check_json_value(_MANIFEST_SCHEMA, data)
        states = tuple({name: ManifestEntry(**entry) for name, entry in state.items()} for state in data["states"])
        results = {name: ManifestEntry(**entry) for name, entry in data["results"].items()}
        names = [*(name for state in (*states, results) for name in state), *data["obsolete"]]
        manifest = Manifest(data["kind"], data["generation"], states, results, tuple(data["obsolete"]))
        if not all(map(is_valid_file_name, names)):
            raise ValueError("it names files that cannot be in a run folder")
        if manifest.to_bytes() != raw:
            raise InputError(f"{path}: altered or damaged (its checksum does not match)")
    return manifest, raw


def _entries_to_json(entries: ManifestEntries) -> dict[str, Any]:
    return {name: vars(entry) for name, entry in entries.items()}


def _dump_manifest_json(data: object) -> bytes:
    return json.dumps(data, indent=1).encode()
