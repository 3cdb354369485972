"""A run folder, held for writing: every save is one commit, so a kill at any moment leaves the old or the new state.

    DIR/manifest.json                  the commit point: names, sizes and hashes of the files (runs/folder_reader.py)
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
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from adagoal.core import file_io
from adagoal.core.errors import InputError
from adagoal.core.file_io import FileContent, FileContents
from adagoal.runs.folder_reader import (
    CHECKPOINTS_FOLDER,
    MANIFEST_BACKUP_FILE,
    MANIFEST_FILE,
    Manifest,
    ManifestEntries,
    ManifestEntry,
    SavedRun,
    find_saved_run,
    is_valid_file_name,
    read_manifest,
    staged_file_path,
)

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
        if not is_valid_file_name(name):
            raise InputError(f"{self.path / name}: not a name for a file of a run")
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
        with file_io.report_write_errors(self.path / MANIFEST_BACKUP_FILE):
            self._write_manifest_backup(manifest, raw)
        file_io.remove_partial_files(self.path)
        checkpoints = self.path / CHECKPOINTS_FOLDER
        needed = {staged_file_path(self.path, n, e.generation) for c in manifest.checkpoints for n, e in c.items()}
        staged = {checkpoints / name for name in _list_folder(checkpoints) if self._staged_name_pattern.fullmatch(name)}
        for leftover in (*(self.path / name for name in manifest.obsolete_files), *sorted(staged - needed)):
            with contextlib.suppress(OSError):  # a file that cannot be removed does no harm
                leftover.unlink(missing_ok=True)

    def _write_manifest_backup(self, manifest: Manifest, raw: bytes) -> None:
        target = self.path / MANIFEST_BACKUP_FILE
        # Opening a folder comes here too, and should not write if nothing is left to do.
        with contextlib.suppress(InputError):
            if read_manifest(target)[1] == raw:
                return
        path = staged_file_path(self.path, MANIFEST_BACKUP_FILE, manifest.generation)
        # A copy that was cut off may have left this file, and _write_new_file writes new files only.
        path.unlink(missing_ok=True)
        _write_new_file(path, file_io.bytes_content(raw), [])
        os.replace(path, target)


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
