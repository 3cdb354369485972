"""How a training is saved: on the way, at its end, and where something fails, also a disk that is full."""

from __future__ import annotations

import warnings
from pathlib import Path

from adagoal.core.errors import FolderWarning, InputError
from adagoal.core.files import FileContent, arrays_content
from adagoal.core.status import Status
from adagoal.deep.training import Training
from adagoal.runs import folder as folders
from adagoal.runs import training_files as files
from adagoal.runs.folder import RunFolder

TRAINING_CHECKPOINT_FILE = "checkpoint.npz"


def checkpoint_contents(training: Training) -> dict[str, FileContent]:
    """A checkpoint."""
    return {TRAINING_CHECKPOINT_FILE: arrays_content(*training.state(), compress=False)}


def save_training(training: Training, folder: RunFolder) -> None:
    """A checkpoint and the result so far: interrupted, which is what it is should nobody save again."""
    folder.save_files(
        checkpoint_contents(training),
        files.training_file_contents(Status.INTERRUPTED, training.history, training.current_policies(), {}),
    )


def save_training_or_warn(training: Training, folder: RunFolder) -> None:
    """A save on the way. A full disk may have room again later; an early error is that nothing could be saved yet."""
    try:
        save_training(training, folder)
    except InputError as error:
        if not folder.has_saved_files and not training.has_reached_pause:
            raise
        warnings.warn(f"{error}; the training goes on, and tries again later", FolderWarning, stacklevel=2)


def save_final_training(folder: RunFolder, state: dict[str, FileContent], ended: dict[str, FileContent]) -> None:
    """Commit the end of a training, or save at least its policy (:func:`adagoal.runs.folder.save_final_files`)."""
    folders.save_final_files(folder, state, ended, ended, "the policy")


def save_after_failure(training: Training, folder: RunFolder, error: Exception) -> bool:
    """Keep what was learnt before something failed; whether there was anything, and it could be kept.

    A cycle that failed is played again on resuming, with what was learnt while it ran: as good, but not bit for bit
    the training that had not failed.
    """
    if training.cycle == 0:
        return False
    try:
        save_training(training, folder)
    except Exception as second:
        error.add_note(f"what had been learnt could not be saved: {type(second).__name__}: {second}")
        return False
    error.add_note(f"what had been learnt is in {folder.path}")
    return True


def add_folder_to_error(error: InputError, folder: Path) -> InputError:
    """The same line, which also says where the training can go on."""
    longer = type(error)(f"{error.reason}; what had been learnt is in {folder}", error.name)
    for note in error.__notes__:
        longer.add_note(note)
    return longer
