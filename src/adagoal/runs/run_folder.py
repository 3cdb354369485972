"""A run folder that cannot be broken: every save is one commit; a kill at any moment leaves the old or the new state.

    DIR/manifest.json               the commit point: which files, of which size and hash (adagoal.runs.folder_reader)
    DIR/manifest.backup.json        a copy of it, against damage
    DIR/checkpoints/                checkpoint-000013.npz, checkpoint-000012.npz: the last two
    DIR/result.json, policies.npz ...  the files of the result, under the names that people and scripts rely on

A save has these steps, and each may be the last:

1. Every file is written into ``checkpoints/`` under a name with the number of the save, and synced. Nothing that the
   old manifest names is touched.
2. The new manifest is written there too, synced with the folder, and renamed to ``manifest.json``. *This is the
   commit:* before it a reader sees the old state, after it the new one.
3. The result files are renamed to their own names. A reader that finds another content under the name takes the file
   from where step 1 wrote it, so that it does not matter how far this step came.
4. The copy of the manifest is written, and what no manifest names any more is removed.

Steps 3 and 4 can be done again without harm; they are, when the folder is next opened for writing. What is in the
folder but in no manifest belongs to the user and is left alone, except under ``checkpoints/``.

A new run in the folder of an old one (:meth:`Folder.start_new_run`) changes nothing until its first save. The commit of
that save is the moment in which the new run replaces the old one.

While two checkpoints are kept, a save needs room for a third; where there is none, the older one is given up. How often
to save follows from how long it takes: see :func:`save_interval_elapsed`. A checkpoint may consist of several files,
and those that did not change are carried over (``same``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from adagoal.core import file_io
from adagoal.core.errors import InputError
from adagoal.core.file_io import FileContent
from adagoal.runs import folder_reader as manifests
from adagoal.runs.folder_reader import (
    CHECKPOINTS_FOLDER,
    Manifest,
    ManifestEntries,
    ManifestEntry,
    SavedRun,
    find_saved_run,
    staged_file_path,
)

MIN_SAVE_INTERVAL_SECONDS = 10.0
MAX_SAVE_TIME_SHARE = 0.03
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where there is no room."""
RESULTS = (
    "result.json",
    "policies.npz",
    "model.npz",
    "policy.npz",
    "goals.npz",
    "past.npz",
    "view.json",
    "report.html",
    "log.csv",
)
"""Result files that a new run removes from the folder of a run whose manifest is damaged and names nothing."""

_STAGED_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*-([0-9]{6,12})(\.[a-z]{1,8}){1,2}")


def save_interval_elapsed(since: float, cost: float) -> bool:
    """Whether to save again, ``since`` seconds after a save that took ``cost`` seconds.

    Saving takes at most a share of 3% of the time: a state of gigabytes that takes a minute to write is saved about
    twice an hour, a small one every ten seconds.
    """
    return since >= max(MIN_SAVE_INTERVAL_SECONDS, cost / MAX_SAVE_TIME_SHARE)


@contextlib.contextmanager
def open_locked_folder(path: Path, kind: str) -> Iterator[RunFolder]:
    """A folder for a run of a kind ("exploration" or "training"), locked against other runs; made if need be."""
    with file_io.folder_lock(path):
        folder = RunFolder(path, kind)
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                (path / CHECKPOINTS_FOLDER).rmdir()  # only where nothing was ever saved


class RunFolder:
    """A run folder, held for writing: see :func:`open_locked_folder`."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self._read_error: InputError | None = None
        self._previous_run: SavedRun | None = None
        """What the next commit replaces or continues; None where there is nothing, or nothing that can be read."""
        self._starts_new_run = False
        try:
            self._previous_run = find_saved_run(path)
            self._complete_commit()
        except InputError as error:
            self._read_error = error
        self._last_save_seconds, self._last_save_time = 0.0, time.monotonic()
        numbers = (_STAGED_NAME_PATTERN.fullmatch(name) for name in _list_folder(path / CHECKPOINTS_FOLDER))
        self._generation = max((int(match[1]) for match in numbers if match), default=0)

    @property
    def saved_run(self) -> SavedRun | None:
        """The run in the folder, None where there is none; a damaged one is an error."""
        if self._read_error is not None:
            raise self._read_error
        return self._previous_run

    @property
    def has_saved_files(self) -> bool:
        """Whether something of this run is saved."""
        return self._previous_run is not None and not self._starts_new_run

    def start_new_run(self) -> None:
        """The next save begins a new run. Whatever is in the folder, damaged or not, stays as it is until then."""
        self._starts_new_run = True

    def has_checkpoint_file(self, name: str) -> bool:
        """Whether the last checkpoint has a file of this name, which the next one can carry over."""
        return any(name in state for state in self._kept_checkpoints()[:1])

    def is_save_due(self) -> bool:
        """Whether it is time for the next save."""
        return save_interval_elapsed(time.monotonic() - self._last_save_time, self._last_save_seconds)

    def save_files(
        self,
        state: Mapping[str, FileContent] | None = None,
        results: Mapping[str, FileContent] | None = None,
        same: tuple[str, ...] = (),
    ) -> None:
        """Commit a checkpoint, result files, or both. What fails before the commit is one line; the old state stays.

        ``state`` and the files named in ``same`` (carried over from the last checkpoint) are a new checkpoint. Without
        both, the old checkpoints stay. Result files that are not given stay as they are. Where there is no room for a
        third checkpoint, the older of the two makes room for it.
        """
        try:
            self._save_once(state or {}, results or {}, same)
        except InputError as error:
            if getattr(error.__context__, "errno", None) not in DISK_FULL_ERRNOS or not self._drop_older_checkpoint():
                raise
            self._save_once(state or {}, results or {}, same)

    def _drop_older_checkpoint(self) -> bool:
        """Whether there was a second checkpoint, which is removed now."""
        if len(self._kept_checkpoints()) < 2:
            return False
        try:
            self._save_once({}, {}, (), 1)
        except InputError:
            return False
        return True

    def _save_once(
        self, state: Mapping[str, FileContent], results: Mapping[str, FileContent], same: tuple[str, ...], keep: int = 2
    ) -> None:
        """One attempt; ``keep`` says how many checkpoints there are afterwards."""
        began = time.monotonic()
        if not self._starts_new_run and self.saved_run is not None and self.saved_run.kind != self.kind:
            raise InputError(f"{self.path}: holds a run of another kind ({self.saved_run.kind})")
        last = self._previous_manifest()
        self._generation = max(self._generation, last.generation if last is not None else 0) + 1
        written: list[Path] = []
        try:
            states = self._kept_checkpoints()
            new: ManifestEntries = {name: states[0][name] for name in same}
            new |= {name: self._write_staged_file(name, content, written) for name, content in state.items()}
            kept = self._kept_results() | {
                name: self._write_staged_file(name, c, written) for name, c in results.items()
            }
            obsolete = tuple(name for name in self._list_obsolete_files() if name not in kept)
            states = ((new, *states) if new else states)[:keep]
            manifest = Manifest(self.kind, self._generation, states, kept, obsolete)
            self._commit_manifest(manifest, written)
        except BaseException:
            self._remove_written_files(written)
            self._last_save_time = time.monotonic()  # what failed is not tried again at once
            raise
        self._previous_run, self._read_error, self._starts_new_run = SavedRun(self.path, manifest), None, False
        self._complete_commit()
        self._last_save_seconds, self._last_save_time = time.monotonic() - began, time.monotonic()

    # --- what the next save builds on ---

    def _previous_manifest(self) -> Manifest | None:
        return self._previous_run.manifest if self._previous_run is not None else None

    def _kept_checkpoints(self) -> tuple[ManifestEntries, ...]:
        """The checkpoints to keep, newest first; one that was found damaged is not kept."""
        manifest = self._previous_manifest()
        return (
            manifest.checkpoints[self._previous_run.intact_checkpoint :]
            if self._previous_run and manifest and not self._starts_new_run
            else ()
        )

    def _kept_results(self) -> ManifestEntries:
        """The result files to keep."""
        manifest = self._previous_manifest()
        return dict(manifest.results) if manifest is not None and not self._starts_new_run else {}

    def _list_obsolete_files(self) -> list[str]:
        """Result files of the run that the next commit replaces. Where no run was, no file is ours."""
        manifest = self._previous_manifest()
        if not self._starts_new_run:
            return []
        if manifest is not None:
            return list(manifest.results)
        return [name for name in RESULTS if self._read_error is not None and os.path.lexists(self.path / name)]

    # --- the steps ---

    def _write_staged_file(self, name: str, content: FileContent, written: list[Path]) -> ManifestEntry:
        if not manifests.is_valid_file_name(name):
            raise InputError(f"{self.path / name}: not a name for a file of a run")
        path = staged_file_path(self.path, name, self._generation)
        sink = _write_new_file(path, content, written)
        return ManifestEntry(self._generation, sink.size, sink.digest.hexdigest())

    def _commit_manifest(self, manifest: Manifest, written: list[Path]) -> None:
        """Step 2."""
        path = staged_file_path(self.path, manifests.MANIFEST_FILE, self._generation)
        _write_new_file(path, lambda file: file.write(manifest.to_bytes()), written)
        with file_io.report_write_errors(self.path / manifests.MANIFEST_FILE):
            file_io.sync_folder(self.path / CHECKPOINTS_FOLDER)
            os.replace(path, self.path / manifests.MANIFEST_FILE)
            file_io.sync_folder(self.path)
        with contextlib.suppress(OSError):
            file_io.sync_folder(self.path.parent)  # the folder itself may be new

    def _remove_written_files(self, written: list[Path]) -> None:
        """Remove what a failed save wrote, unless it failed after its commit."""
        with contextlib.suppress(InputError, OSError):
            now = find_saved_run(self.path)
            if now is None or now.manifest.generation != self._generation:
                for path in written:
                    path.unlink(missing_ok=True)

    def _complete_commit(self) -> None:
        """Steps 3 and 4, for the manifest that is in force; nothing where that one is damaged."""
        path = self.path / manifests.MANIFEST_FILE
        if not os.path.lexists(path):
            return
        try:
            manifest, raw = manifests.read_manifest(path)
        except InputError:
            return
        named = {
            staged_file_path(self.path, n, e.generation).name
            for state in manifest.checkpoints
            for n, e in state.items()
        }
        for name, entry in manifest.results.items():
            source = staged_file_path(self.path, name, entry.generation)
            if os.path.lexists(source):
                with file_io.report_write_errors(self.path / name):
                    os.replace(source, self.path / name)
        with file_io.report_write_errors(self.path / manifests.MANIFEST_BACKUP_FILE):
            self._write_manifest_backup(manifest, raw)
        file_io.remove_partial_files(self.path)
        leftovers = [self.path / name for name in manifest.obsolete_files]
        data = self.path / CHECKPOINTS_FOLDER
        leftovers += [
            data / name for name in _list_folder(data) if _STAGED_NAME_PATTERN.fullmatch(name) and name not in named
        ]
        for leftover in leftovers:
            with contextlib.suppress(OSError):  # what cannot be removed does no harm
                leftover.unlink(missing_ok=True)

    def _write_manifest_backup(self, manifest: Manifest, raw: bytes) -> None:
        target = self.path / manifests.MANIFEST_BACKUP_FILE
        with contextlib.suppress(InputError):
            if manifests.read_manifest(target)[1] == raw:
                return
        path = staged_file_path(self.path, manifests.MANIFEST_BACKUP_FILE, manifest.generation)
        path.unlink(missing_ok=True)
        _write_new_file(path, lambda file: file.write(raw), [])
        os.replace(path, target)


def save_final_files(
    folder: RunFolder,
    state: Mapping[str, FileContent],
    results: Mapping[str, FileContent],
    answer: Mapping[str, FileContent],
    name: str,
    same: tuple[str, ...] = (),
) -> None:
    """Commit the end of a run; if there is no room, save at least its answer and raise an error that says where.

    ``answer`` are the result files that can be read without the others, and ``name`` is what the message calls them.
    They go into the folder itself or, if that fails too, into a new temporary one.
    """
    try:
        folder.save_files(state, results, same)
    except InputError as error:
        rest = (
            f"; {folder.path} holds an earlier checkpoint, from which the run can go on"
            if folder.has_saved_files
            else ""
        )
        raise InputError(f"{error.reason}; {name} {_rescue_answer(folder, answer)}{rest}", error.name) from error


def _rescue_answer(folder: RunFolder, answer: Mapping[str, FileContent]) -> str:
    """Save the answer of a run where there is room; return where it is."""
    with contextlib.suppress(InputError):
        folder.save_files({}, answer)
        return f"is in {folder.path}"
    try:
        with open_locked_folder(Path(tempfile.mkdtemp(prefix="adagoal-")), folder.kind) as other:
            other.save_files({}, answer)
            return f"is in {other.path}"
    except (InputError, OSError):
        return "could not be saved elsewhere either"


class _HashingWriter(io.RawIOBase):
    """Takes the size and the hash of what is written; it cannot seek, so these are the file's."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.size, self.digest = file, 0, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += self.file.write(data)
        return memoryview(data).nbytes


def _write_new_file(path: Path, content: FileContent, written: list[Path]) -> _HashingWriter:
    """Write a new file and sync it."""
    with file_io.report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        written.append(path)
        with os.fdopen(handle, "wb") as file:
            sink = _HashingWriter(file)
            content(sink)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
    return sink


def _list_folder(folder: Path) -> list[str]:
    if os.path.islink(folder) and folder.name == CHECKPOINTS_FOLDER:
        raise InputError(f"{folder}: a link, where the run's own folder should be")
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{folder}: not readable ({error.strerror})") from None
