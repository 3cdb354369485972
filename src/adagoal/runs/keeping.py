"""How a training is saved: on the way, at its end, and where something fails, also a disk that is full."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from pathlib import Path

from adagoal.core.errors import FolderWarning, InputError
from adagoal.core.files import Content, arrays_content
from adagoal.core.status import Status
from adagoal.deep.training import Training
from adagoal.runs import training_files as files
from adagoal.runs.folder import Folder, hold
from adagoal.runs.training_schema import KIND

CHECKPOINT = "checkpoint.npz"


def state(training: Training) -> dict[str, Content]:
    """A checkpoint."""
    return {CHECKPOINT: arrays_content(*training.state(), compress=False)}


def save(training: Training, folder: Folder) -> None:
    """A checkpoint and the result so far: interrupted, which is what it is should nobody save again."""
    folder.save(state(training), files.contents(Status.INTERRUPTED, training.history, training.policies(), {}))


def save_meanwhile(training: Training, folder: Folder) -> None:
    """A save on the way. A full disk may have room again later; an early error is that nothing could be saved yet."""
    try:
        save(training, folder)
    except InputError as error:
        if not folder.begun and not training.played:
            raise
        warnings.warn(f"{error}; the training goes on, and tries again later", FolderWarning, stacklevel=2)


def save_last(folder: Folder, state: dict[str, Content], ended: dict[str, Content]) -> None:
    """The last save: without room for the checkpoint the results alone, and without room for these somewhere else."""
    try:
        folder.save(state, ended)
    except InputError as error:
        raise InputError(f"{error.reason}; {_kept(folder, bool(state), ended)}", error.name) from error


def _kept(folder: Folder, again: bool, ended: dict[str, Content]) -> str:
    """Keep at least what was learnt, and say where it is; ``again`` tries the folder itself first."""
    rest = f"; {folder.path} holds an earlier checkpoint, from which the training can go on" if folder.begun else ""
    if again:
        with contextlib.suppress(InputError):
            folder.save({}, ended)
            return f"the policy is in {folder.path}{rest}"
    try:
        with hold(Path(tempfile.mkdtemp(prefix="adagoal-")), KIND) as other:
            other.save({}, ended)
            return f"the policy is in {other.path}{rest}"
    except (InputError, OSError):
        return f"the policy could not be saved elsewhere either{rest}"


def rescued(training: Training, folder: Folder, error: Exception) -> bool:
    """Keep what was learnt before something failed; whether there was anything, and it could be kept.

    A cycle that failed is played again on resuming, with what was learnt while it ran: as good, but not bit for bit
    the training that had not failed.
    """
    if training.cycle == 0:
        return False
    try:
        save(training, folder)
    except Exception as second:
        error.add_note(f"what had been learnt could not be saved: {type(second).__name__}: {second}")
        return False
    error.add_note(f"what had been learnt is in {folder.path}")
    return True


def with_folder(error: InputError, folder: Path) -> InputError:
    """The same line, which also says where the training can go on."""
    longer = type(error)(f"{error.reason}; what had been learnt is in {folder}", error.name)
    for note in error.__notes__:
        longer.add_note(note)
    return longer
