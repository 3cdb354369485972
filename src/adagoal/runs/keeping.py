"""How a training is saved: on the way, at its end, and where something fails, also a disk that is full."""

from __future__ import annotations

import warnings
from pathlib import Path

from adagoal.core.errors import FolderWarning, InputError
from adagoal.core.files import Content, arrays_content
from adagoal.core.status import Status
from adagoal.deep.training import Training
from adagoal.runs import folder as folders
from adagoal.runs import training_files as files
from adagoal.runs.folder import Folder

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
    """Commit the end of a training, or save at least its policy (:func:`adagoal.runs.folder.save_last`)."""
    folders.save_last(folder, state, ended, ended, "the policy")


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
