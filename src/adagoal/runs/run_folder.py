"""A run folder with manifest, checkpoints and lock: every save is one commit, which a kill cannot leave half done.

    DIR/manifest.json                  the commit point: names, sizes and hashes of the files below
    DIR/manifest.backup.json           a copy of it, against damage
    DIR/checkpoints/                   checkpoint-000013.npz, checkpoint-000012.npz: the last two
    DIR/result.json, policies.npz ...  the files of the result, under the names that people and scripts rely on

A save has four steps:

1. Write and sync every file in ``checkpoints/``, under a name with the number of the save. Files that the old manifest
   names stay untouched.
2. Write the new manifest there too, sync it with the folder, and rename it to ``manifest.json``. *This is the commit:*
   before it a reader sees the old state, after it the new one.
3. Rename the result files to their own names. If this step was cut off, a reader finds another content under the name
   and takes the file from where step 1 wrote it.
4. Copy the manifest, and remove the files that no manifest names any more.

Steps 3 and 4 can be repeated without harm. :class:`RunFolder` repeats them when it opens a folder. Files that are in no
manifest belong to the user and stay, except under ``checkpoints/``.

A new run in the folder of an old one (:meth:`RunFolder.start_new_run`) changes nothing until the commit of its first
save, which replaces the old run. While two checkpoints are kept, a save needs room for a third; on a full disk it
gives up the older one.

Reading (:func:`read_saved_run`) needs no lock and sees the folder as one save left it. The manifest says, among
others::

    "states":  [{"checkpoint.npz": {"generation": 13, "size": ..., "sha256": ...}}, {... the checkpoint before it}],
    "results": {"result.json": {"generation": 12, "size": ..., "sha256": ...}, ...}, "checksum": ...

The generation of an entry is the number of the save that wrote the file. A manifest is accepted only if it is byte for
byte what this module would write. That guards against damage, not against forgery: whoever alters a file can alter the
manifest as well. Therefore the content of every file is also checked against a schema.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, TypeVar

from numpy.typing import NDArray

from adagoal.core import file_formats, file_io
from adagoal.core.errors import FolderWarning, InputError
from adagoal.core.file_formats import check_json_value, object_schema
from adagoal.core.file_io import FileContent, FileContents
from adagoal.core.validation import check_folder_path

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
            text = f"format {number}, but this version reads format {MANIFEST_FORMAT}; use the version that wrote it"
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

    def load_text(self, name: str) -> str:
        """Read a text file."""
        with self.open_verified(name) as (path, file, size), file_io.report_read_errors(path):
            if size > file_io.MAX_JSON_BYTES:
                raise ValueError(f"larger than {file_io.MAX_JSON_BYTES} bytes")
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

        # This checks shapes and types in the headers before it unpacks anything: a forged shape costs no memory.
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
    def report_errors(self, name: str) -> Iterator[None]:
        """Turn errors about the content of a file into one line that names the file, also if they name a setting."""
        path = self.candidate_paths[name][0] if name in self else self.folder / name
        try:
            with file_io.report_read_errors(path):
                yield
        except InputError as error:
            if error.name is None:
                raise
            raise InputError(f"{path}: damaged or not readable ({error})") from None

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
        problem = InputError(
            f"{self.path}: holds no checkpoint, which resume, play and exports for model checkers need; "
            "run it again with a folder (result.save and certify-data write no checkpoint)"
        )
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
    """Return the run in a folder, None if there is no manifest; a copy replaces a damaged manifest."""
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
                raise missing_run_error(path)
            return load(saved)
        except InputError:
            # A commit removes files that a reader of the state before it may still want. Only an error without a
            # commit in between is about the folder itself.
            if last_commit_stamp(path) == before:
                raise


def missing_run_error(path: Path, name: str | None = None) -> InputError:
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


MIN_SAVE_INTERVAL_SECONDS = 10.0  # a killed run loses at most about this much work, if saves are quick
MAX_SAVE_TIME_SHARE = 0.03  # share of the run time that saves may take; slow saves become rarer


def save_interval_elapsed(since: float, cost: float) -> bool:
    """Return True if it is time to save, ``since`` seconds after a save that took ``cost`` seconds."""
    return since >= max(MIN_SAVE_INTERVAL_SECONDS, cost / MAX_SAVE_TIME_SHARE)


@contextlib.contextmanager
def open_locked_folder(path: Path, kind: str) -> Iterator[RunFolder]:
    """Open the folder of a run ("exploration" or "training") for writing, locked against other runs; create it."""
    with file_io.folder_lock(path):
        folder = RunFolder(path, kind)
        try:
            yield folder
        finally:
            # Fails unless the folder is empty, and it is empty only if nothing was ever saved.
            with contextlib.suppress(OSError):
                (path / CHECKPOINTS_FOLDER).rmdir()


class RunFolder:
    """A run folder, held for writing: see :func:`open_locked_folder`."""

    # Only files with such names are ever removed from checkpoints/.
    _staged_name_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*-([0-9]{6,12})(\.[a-z]{1,8}){1,2}")

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self._read_error: InputError | None = None
        self._previous_run: SavedRun | None = None  # the run that the next commit replaces or continues
        self._starts_new_run = False
        try:
            self._previous_run = find_saved_run(path)
            self._complete_commit()
        except InputError as error:
            # Kept for later, because start_new_run must be able to replace a damaged run.
            self._read_error = error
        self._last_save_seconds, self._last_save_time = 0.0, time.monotonic()
        # Leftovers of a save that was cut off count too: _write_new_file refuses a name that exists.
        numbers = (self._staged_name_pattern.fullmatch(name) for name in _list_folder(path / CHECKPOINTS_FOLDER))
        self._generation = max((int(match[1]) for match in numbers if match), default=0)

    @property
    def saved_run(self) -> SavedRun | None:
        """The run in the folder, None if it is empty; a damaged run raises its error."""
        if self._read_error is not None:
            raise self._read_error
        return self._previous_run

    @property
    def has_saved_files(self) -> bool:
        """Whether something of this run is saved."""
        return self._previous_run is not None and not self._starts_new_run

    def start_new_run(self) -> None:
        """Let the next save begin a new run. Until then the folder does not change, damaged or not."""
        self._starts_new_run = True

    def is_save_due(self) -> bool:
        """Whether it is time for the next save."""
        return save_interval_elapsed(time.monotonic() - self._last_save_time, self._last_save_seconds)

    def save_files(self, checkpoint: FileContents | None = None, results: FileContents | None = None) -> None:
        """Commit a checkpoint, result files, or both. If it fails, the old state stays, and the error is one line.

        Without a new checkpoint the old ones stay. Result files that are not given stay as they are.
        """
        try:
            self._save_once(checkpoint or {}, results or {})
        except InputError as error:
            # report_write_errors hides the OSError from the traceback, but Python keeps it as the context.
            disk_is_full = getattr(error.__context__, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
            if not disk_is_full or not self._drop_older_checkpoint():
                raise
            self._save_once(checkpoint or {}, results or {})

    def _drop_older_checkpoint(self) -> bool:
        if len(self._kept_checkpoints()) < 2:
            return False
        try:
            self._save_once({}, {}, n_checkpoints=1)
        except InputError:
            return False
        return True

    def _save_once(self, checkpoint: FileContents, results: FileContents, n_checkpoints: int = 2) -> None:
        began = time.monotonic()
        previous = None if self._starts_new_run else self.saved_run
        if previous is not None and previous.kind != self.kind:
            raise InputError(f"{self.path}: holds a run of another kind ({previous.kind}); give another folder")
        # Staged names alone do not tell the last number: a commit renames result files, so none may be left.
        if self._previous_run is not None:
            self._generation = max(self._generation, self._previous_run.manifest.generation)
        self._generation += 1
        written: list[Path] = []
        try:
            new = {name: self._write_staged_file(name, content, written) for name, content in checkpoint.items()}
            entries = {} if previous is None else dict(previous.manifest.results)
            entries |= {name: self._write_staged_file(name, content, written) for name, content in results.items()}
            # Named in the manifest, so their removal is repeated if it is cut off after the commit.
            obsolete = tuple(name for name in self._list_obsolete_files() if name not in entries)
            checkpoints = ((new,) if new else ()) + self._kept_checkpoints()
            manifest = Manifest(self.kind, self._generation, checkpoints[:n_checkpoints], entries, obsolete)
            self._commit_manifest(manifest, written)
        except BaseException:
            # Also after Ctrl-C: files that no manifest names only take up room.
            self._remove_written_files(written)
            # A failed save counts as one, so a full disk is not tried again after every step.
            self._last_save_time = time.monotonic()
            raise
        self._previous_run, self._read_error, self._starts_new_run = SavedRun(self.path, manifest), None, False
        self._complete_commit()
        self._last_save_seconds, self._last_save_time = time.monotonic() - began, time.monotonic()

    def _kept_checkpoints(self) -> tuple[ManifestEntries, ...]:
        """Checkpoints of this run, newest first, without those that were found damaged."""
        if self._starts_new_run or self._previous_run is None:
            return ()
        return self._previous_run.manifest.checkpoints[self._previous_run.intact_checkpoint :]

    def _list_obsolete_files(self) -> list[str]:
        """Result files of the run that the next commit replaces."""
        if not self._starts_new_run:
            return []
        if self._previous_run is not None:
            return list(self._previous_run.manifest.results)
        # Without an error there was no run, so every file belongs to the user.
        if self._read_error is None:
            return []
        # The manifest is damaged and names nothing: remove what a run writes.
        names = ("result.json", "policies.npz", "model.npz", "policy.npz", "goals.npz", "past.npz", "view.json")
        return [name for name in (*names, "report.html", "log.csv") if os.path.lexists(self.path / name)]

    def _write_staged_file(self, name: str, content: FileContent, written: list[Path]) -> ManifestEntry:
        sink = _write_new_file(staged_file_path(self.path, name, self._generation), content, written)
        return ManifestEntry(self._generation, sink.size, sink.digest.hexdigest())

    def _commit_manifest(self, manifest: Manifest, written: list[Path]) -> None:
        """Step 2."""
        path = staged_file_path(self.path, MANIFEST_FILE, self._generation)
        _write_new_file(path, file_io.bytes_content(manifest.to_bytes()), written)
        with file_io.report_write_errors(self.path / MANIFEST_FILE):
            # The names of the files must be durable before the manifest that lists them. In the other order a power
            # failure could leave a manifest without its files.
            file_io.sync_folder(self.path / CHECKPOINTS_FOLDER)
            os.replace(path, self.path / MANIFEST_FILE)
            file_io.sync_folder(self.path)
        # The folder itself may be new. Its parent may belong to another user, so a failure is ignored.
        with contextlib.suppress(OSError):
            file_io.sync_folder(self.path.parent)

    def _remove_written_files(self, written: list[Path]) -> None:
        """Remove what a failed save wrote, unless it failed after its commit."""
        # The error may come from the sync after the rename. Then the manifest in force names these files.
        with contextlib.suppress(InputError, OSError):
            now = find_saved_run(self.path)
            if now is None or now.manifest.generation != self._generation:
                for path in written:
                    path.unlink(missing_ok=True)

    def _complete_commit(self) -> None:
        """Steps 3 and 4, for the manifest in force; do nothing if it is missing or damaged."""
        if not os.path.lexists(self.path / MANIFEST_FILE):
            return
        try:
            manifest, raw = read_manifest(self.path / MANIFEST_FILE)
        except InputError:
            return
        for name, entry in manifest.results.items():
            source = staged_file_path(self.path, name, entry.generation)
            # It is missing if an earlier attempt has renamed it, or if an earlier save wrote the file.
            if os.path.lexists(source):
                with file_io.report_write_errors(self.path / name):
                    os.replace(source, self.path / name)
        # Before files are removed: the old copy still names those of the state before.
        file_io.remove_partial_files(self.path)
        self._write_manifest_backup(raw)
        checkpoints = self.path / CHECKPOINTS_FOLDER
        needed = {staged_file_path(self.path, n, e.generation) for c in manifest.checkpoints for n, e in c.items()}
        staged = {checkpoints / name for name in _list_folder(checkpoints) if self._staged_name_pattern.fullmatch(name)}
        for leftover in (*(self.path / name for name in manifest.obsolete_files), *sorted(staged - needed)):
            with contextlib.suppress(OSError):  # a file that cannot be removed does no harm
                leftover.unlink(missing_ok=True)

    def _write_manifest_backup(self, raw: bytes) -> None:
        target = self.path / MANIFEST_BACKUP_FILE
        # Opening a folder comes here too, and should not write if nothing is left to do.
        with contextlib.suppress(InputError):
            if read_manifest(target)[1] == raw:
                return
        file_io.write_atomically(target, file_io.bytes_content(raw))


class _HashingWriter(io.RawIOBase):
    """File wrapper that counts and hashes what is written. It cannot seek, so these are the file's size and hash."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.size, self.digest = file, 0, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += self.file.write(data)
        # Not len(data): the buffer may be an array whose items are larger than a byte.
        return memoryview(data).nbytes


def _write_new_file(path: Path, content: FileContent, written: list[Path]) -> _HashingWriter:
    """Write a new file and sync it."""
    with file_io.report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL overwrites nothing, and follows no link.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        written.append(path)
        with os.fdopen(handle, "wb") as file:
            sink = _HashingWriter(file)
            content(sink)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
    return sink


def _list_folder(folder: Path) -> list[str]:
    # Behind a link, leftovers to be removed would be files of another folder.
    if os.path.islink(folder) and folder.name == CHECKPOINTS_FOLDER:
        raise InputError(f"{folder}: is a symbolic link; a run needs a folder of its own")
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{folder}: not readable ({error.strerror})") from None
