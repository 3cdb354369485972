"""A run folder that cannot be broken: every save is one commit; a kill at any moment leaves the old or the new state.

    DIR/manifest.json               the commit point: which files, of which size and hash (adagoal.runs.manifest)
    DIR/manifest.backup.json        a copy of it, against damage
    DIR/checkpoints/                checkpoint-000013.npz, checkpoint-000012.npz: the last two
    DIR/result.json, model.npz ...  the files of the result, under the names that people and scripts rely on

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

A new run in the folder of an old one (:meth:`Folder.fresh`) changes nothing until its first save. The commit of that
save is the moment in which the new run replaces the old one.

While two checkpoints are kept, a save needs room for a third; where there is none, the older one is given up. How often
to save follows from how long it takes: see :func:`due`. A checkpoint may consist of several files, and those that did
not change are carried over (``same``).
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

from adagoal.core import files
from adagoal.core.errors import InputError
from adagoal.core.files import Content
from adagoal.runs import manifest as manifests
from adagoal.runs.manifest import Entries, Entry, Manifest
from adagoal.runs.saved import DATA, Saved, find, staged

LEAST_SECONDS = 10.0
SHARE = 0.03
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where there is no room."""
RESULTS = ("result.json", "model.npz", "policy.npz", "goals.npz", "past.npz", "view.json", "report.html", "log.csv")
"""Result files that a new run removes from the folder of a run whose manifest is damaged and names nothing."""

_OURS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*-([0-9]{6,12})(\.[a-z]{1,8}){1,2}")


def due(since: float, cost: float) -> bool:
    """Whether to save again, ``since`` seconds after a save that took ``cost`` seconds.

    Saving takes at most a share of 3% of the time: a state of gigabytes that takes a minute to write is saved about
    twice an hour, a small one every ten seconds.
    """
    return since >= max(LEAST_SECONDS, cost / SHARE)


@contextlib.contextmanager
def hold(path: Path, kind: str) -> Iterator[Folder]:
    """A folder for a run of a kind ("exploration" or "training"), locked against other runs; made if need be."""
    with files.alone_in(path):
        folder = Folder(path, kind)
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                (path / DATA).rmdir()  # only where nothing was ever saved


class Folder:
    """A run folder, held for writing: see :func:`hold`."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self._problem: InputError | None = None
        self._old: Saved | None = None
        """What the next commit replaces or continues; None where there is nothing, or nothing that can be read."""
        self._fresh = False
        try:
            self._old = find(path)
            self._settle()
        except InputError as error:
            self._problem = error
        self._cost, self._saved_at = 0.0, time.monotonic()
        numbers = (_OURS.fullmatch(name) for name in _names(path / DATA))
        self._generation = max((int(match[1]) for match in numbers if match), default=0)

    @property
    def saved(self) -> Saved | None:
        """The run in the folder, None where there is none; a damaged one is an error."""
        if self._problem is not None:
            raise self._problem
        return self._old

    @property
    def begun(self) -> bool:
        """Whether something of this run is saved."""
        return self._old is not None and not self._fresh

    def fresh(self) -> None:
        """The next save begins a new run. Whatever is in the folder, damaged or not, stays as it is until then."""
        self._fresh = True

    def has(self, name: str) -> bool:
        """Whether the last checkpoint has a file of this name, which the next one can carry over."""
        return any(name in state for state in self._states()[:1])

    def due(self) -> bool:
        """Whether it is time for the next save."""
        return due(time.monotonic() - self._saved_at, self._cost)

    def save(
        self,
        state: Mapping[str, Content] | None = None,
        results: Mapping[str, Content] | None = None,
        same: tuple[str, ...] = (),
    ) -> None:
        """Commit a checkpoint, result files, or both. What fails before the commit is one line; the old state stays.

        ``state`` and the files named in ``same`` (carried over from the last checkpoint) are a new checkpoint. Without
        both, the old checkpoints stay. Result files that are not given stay as they are. Where there is no room for a
        third checkpoint, the older of the two makes room for it.
        """
        try:
            self._save(state or {}, results or {}, same)
        except InputError as error:
            if getattr(error.__context__, "errno", None) not in FULL or not self._dropped():
                raise
            self._save(state or {}, results or {}, same)

    def _dropped(self) -> bool:
        """Whether there was a second checkpoint, which is removed now."""
        if len(self._states()) < 2:
            return False
        try:
            self._save({}, {}, (), 1)
        except InputError:
            return False
        return True

    def _save(
        self, state: Mapping[str, Content], results: Mapping[str, Content], same: tuple[str, ...], keep: int = 2
    ) -> None:
        """One attempt; ``keep`` says how many checkpoints there are afterwards."""
        began = time.monotonic()
        if not self._fresh and self.saved is not None and self.saved.kind != self.kind:
            raise InputError(f"{self.path}: holds a run of another kind ({self.saved.kind})")
        last = self._manifest()
        self._generation = max(self._generation, last.generation if last is not None else 0) + 1
        written: list[Path] = []
        try:
            states = self._states()
            new: Entries = {name: states[0][name] for name in same}
            new |= {name: self._write(name, content, written) for name, content in state.items()}
            kept = self._results() | {name: self._write(name, c, written) for name, c in results.items()}
            obsolete = tuple(name for name in self._replaced() if name not in kept)
            states = ((new, *states) if new else states)[:keep]
            manifest = Manifest(self.kind, self._generation, states, kept, obsolete)
            self._commit(manifest, written)
        except BaseException:
            self._withdraw(written)
            self._saved_at = time.monotonic()  # what failed is not tried again at once
            raise
        self._old, self._problem, self._fresh = Saved(self.path, manifest), None, False
        self._settle()
        self._cost, self._saved_at = time.monotonic() - began, time.monotonic()

    # --- what the next save builds on ---

    def _manifest(self) -> Manifest | None:
        return self._old.manifest if self._old is not None else None

    def _states(self) -> tuple[Entries, ...]:
        """The checkpoints to keep, newest first; one that was found damaged is not kept."""
        manifest = self._manifest()
        return manifest.states[self._old.intact :] if self._old and manifest and not self._fresh else ()

    def _results(self) -> Entries:
        """The result files to keep."""
        manifest = self._manifest()
        return dict(manifest.results) if manifest is not None and not self._fresh else {}

    def _replaced(self) -> list[str]:
        """Result files of the run that the next commit replaces. Where no run was, no file is ours."""
        manifest = self._manifest()
        if not self._fresh:
            return []
        if manifest is not None:
            return list(manifest.results)
        return [name for name in RESULTS if self._problem is not None and os.path.lexists(self.path / name)]

    # --- the steps ---

    def _write(self, name: str, content: Content, written: list[Path]) -> Entry:
        if not manifests.plain_name(name):
            raise InputError(f"{self.path / name}: not a name for a file of a run")
        path = staged(self.path, name, self._generation)
        sink = _fill(path, content, written)
        return Entry(self._generation, sink.size, sink.digest.hexdigest())

    def _commit(self, manifest: Manifest, written: list[Path]) -> None:
        """Step 2."""
        path = staged(self.path, manifests.NAME, self._generation)
        _fill(path, lambda file: file.write(manifest.encoded()), written)
        with files.writing(self.path / manifests.NAME):
            files.sync_folder(self.path / DATA)
            os.replace(path, self.path / manifests.NAME)
            files.sync_folder(self.path)
        with contextlib.suppress(OSError):
            files.sync_folder(self.path.parent)  # the folder itself may be new

    def _withdraw(self, written: list[Path]) -> None:
        """Remove what a failed save wrote, unless it failed after its commit."""
        with contextlib.suppress(InputError, OSError):
            now = find(self.path)
            if now is None or now.manifest.generation != self._generation:
                for path in written:
                    path.unlink(missing_ok=True)

    def _settle(self) -> None:
        """Steps 3 and 4, for the manifest that is in force; nothing where that one is damaged."""
        path = self.path / manifests.NAME
        if not os.path.lexists(path):
            return
        try:
            manifest, raw = manifests.read(path)
        except InputError:
            return
        named = {staged(self.path, n, e.generation).name for state in manifest.states for n, e in state.items()}
        for name, entry in manifest.results.items():
            source = staged(self.path, name, entry.generation)
            if os.path.lexists(source):
                with files.writing(self.path / name):
                    os.replace(source, self.path / name)
        with files.writing(self.path / manifests.BACKUP):
            self._copy(manifest, raw)
        files.remove_parts(self.path)
        leftovers = [self.path / name for name in manifest.obsolete]
        data = self.path / DATA
        leftovers += [data / name for name in _names(data) if _OURS.fullmatch(name) and name not in named]
        for leftover in leftovers:
            with contextlib.suppress(OSError):  # what cannot be removed does no harm
                leftover.unlink(missing_ok=True)

    def _copy(self, manifest: Manifest, raw: bytes) -> None:
        target = self.path / manifests.BACKUP
        with contextlib.suppress(InputError):
            if manifests.read(target)[1] == raw:
                return
        path = staged(self.path, manifests.BACKUP, manifest.generation)
        path.unlink(missing_ok=True)
        _fill(path, lambda file: file.write(raw), [])
        os.replace(path, target)


def save_last(
    folder: Folder,
    state: Mapping[str, Content],
    results: Mapping[str, Content],
    answer: Mapping[str, Content],
    name: str,
    same: tuple[str, ...] = (),
) -> None:
    """Commit the end of a run; if there is no room, save at least its answer and raise an error that says where.

    ``answer`` are the result files that can be read without the others, and ``name`` is what the message calls them.
    They go into the folder itself or, if that fails too, into a new temporary one.
    """
    try:
        folder.save(state, results, same)
    except InputError as error:
        rest = f"; {folder.path} holds an earlier checkpoint, from which the run can go on" if folder.begun else ""
        raise InputError(f"{error.reason}; {name} {_rescue(folder, answer)}{rest}", error.name) from error


def _rescue(folder: Folder, answer: Mapping[str, Content]) -> str:
    """Save the answer of a run where there is room; return where it is."""
    with contextlib.suppress(InputError):
        folder.save({}, answer)
        return f"is in {folder.path}"
    try:
        with hold(Path(tempfile.mkdtemp(prefix="adagoal-")), folder.kind) as other:
            other.save({}, answer)
            return f"is in {other.path}"
    except (InputError, OSError):
        return "could not be saved elsewhere either"


class _Sink(io.RawIOBase):
    """Takes the size and the hash of what is written; it cannot seek, so these are the file's."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.size, self.digest = file, 0, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += self.file.write(data)
        return memoryview(data).nbytes


def _fill(path: Path, content: Content, written: list[Path]) -> _Sink:
    """Write a new file and sync it."""
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        written.append(path)
        with os.fdopen(handle, "wb") as file:
            sink = _Sink(file)
            content(sink)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
    return sink


def _names(folder: Path) -> list[str]:
    if os.path.islink(folder) and folder.name == DATA:
        raise InputError(f"{folder}: a link, where the run's own folder should be")
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{folder}: not readable ({error.strerror})") from None
