"""The life of a training: its folder, checkpoints, signals, time limit, and how it goes on. Imports JAX."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adagoal.core.checks import integer, number
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.files import alone_in, read_arrays, write_arrays, write_text
from adagoal.core.status import Status
from adagoal.core.types import Floats
from adagoal.deep.actor import Actor
from adagoal.deep.config import Config
from adagoal.deep.fleet import stop_if_imported
from adagoal.deep.history import History
from adagoal.deep.training import Observer, Training
from adagoal.runs import training_files as files
from adagoal.runs.signals import stop_on_signals


@dataclass(frozen=True)
class TrainResult:
    """What a training returns; the folder holds the rest."""

    status: Status
    """``done``, ``budget`` (the minutes were spent) or ``interrupted``."""
    history: History
    actors: list[Actor]
    maps: dict[str, Floats]
    """Final D and E over the training space (see :meth:`Training.maps`)."""
    folder: Path | None


def train(
    configs: Sequence[Config],
    out: str | Path | None = None,
    *,
    workers: int = 0,
    minutes: float = math.inf,
    checkpoint_every: int = 50,
    observe: Observer | None = None,
) -> TrainResult:
    """Train S runs side by side, and keep everything in the folder ``out``.

    ``workers`` 0 takes one process per core; a checkpoint is written every so many cycles. ``observe(history)`` is
    called after every cycle, and ends the training by returning False. A script needs the guard
    ``if __name__ == "__main__":`` around the call, because every worker imports it.
    """
    stop_if_imported()
    _check(workers, minutes, checkpoint_every)
    folder = None if out is None else Path(out)
    with alone_in(folder):
        return _finish(Training(configs, workers), folder, minutes, checkpoint_every, observe)


def resume(
    folder: str | Path,
    *,
    steps: int = 0,
    workers: int = 0,
    minutes: float = math.inf,
    checkpoint_every: int = 50,
    observe: Observer | None = None,
) -> TrainResult:
    """Go on where a folder's last checkpoint stopped; ``steps`` 0 keeps the planned length."""
    stop_if_imported()
    _check(workers, minutes, checkpoint_every)
    folder = Path(folder)
    path = folder / files.CHECKPOINT
    if not path.is_file():
        raise InputError(f"{folder} holds no {files.CHECKPOINT}", name="folder")
    with alone_in(folder):
        return _finish(_restored(path, steps, workers), folder, minutes, checkpoint_every, observe)


def _check(workers: int, minutes: float, checkpoint_every: int) -> None:
    integer("workers", workers, 0, 1024)
    number("minutes", minutes, 0.0, math.inf, closed="(]")
    integer("checkpoint_every", checkpoint_every, 1, 10**9)


def _restored(path: Path, steps: int, workers: int) -> Training:
    """The training of a checkpoint."""
    arrays, facts = read_arrays(path)
    try:
        if facts["format"] != files.FORMAT:
            raise InputError(f"{path}: not a checkpoint of this version")
        configs = [Config.from_json(data) for data in facts["configs"]]
        if steps:
            configs = [replace(config, steps=steps) for config in configs]
        training = Training(configs, workers)
        training.restore(arrays, facts)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged or incomplete ({error})") from error
    return training


def _finish(
    training: Training, folder: Path | None, minutes: float, checkpoint_every: int, observe: Observer | None
) -> TrainResult:
    """Run to the end, the time limit or an interrupt; save and return the result."""
    began = time.monotonic()
    out_of_time = False
    with stop_on_signals() as stop:

        def after_cycle(history: History) -> bool:
            nonlocal out_of_time
            wanted = _wanted(observe, history) and not stop.asked
            out_of_time = wanted and time.monotonic() - began >= 60.0 * minutes
            going = wanted and not out_of_time
            if not going or training.played or training.cycle % checkpoint_every == 0:
                _save(training, folder)
            return going

        try:
            status = training.run(after_cycle)
        except Exception as error:
            if _rescued(training, folder, error) and isinstance(error, InputError):
                raise _with_folder(error, folder) from error.__cause__
            raise
        status = Status.BUDGET if out_of_time else status
        result = TrainResult(status, training.history, training.actors(), training.maps(), folder)
        if folder is not None:
            files.write(folder, result.status, result.history, result.actors, result.maps)
    return result


def _wanted(observe: Observer | None, history: History) -> bool:
    """Whether the user's observer wants the training to go on."""
    if observe is None:
        return True
    try:
        return observe(history) is not False
    except Exception as error:
        raise EnvironmentFailure(f"the function raised {type(error).__name__}: {error}", name="observe") from error


def _save(training: Training, folder: Path | None) -> None:
    """A checkpoint, and the log up to it."""
    if folder is None:
        return
    arrays, facts = training.state()
    facts = {"format": files.FORMAT, "kind": files.KIND, **facts}
    write_arrays(folder / files.CHECKPOINT, arrays, facts, compress=False)
    write_text(folder / "log.csv", training.history.to_csv())


def _rescued(training: Training, folder: Path | None, error: Exception) -> bool:
    """Keep what was learnt before something failed; whether there was anything, and it could be kept.

    A cycle that failed is played again on resuming, with what was learnt while it ran: as good, but not bit for bit
    the training that had not failed.
    """
    if folder is None or training.cycle == 0:
        return False
    try:
        _save(training, folder)
    except Exception as second:
        error.add_note(f"what had been learnt could not be saved: {type(second).__name__}: {second}")
        return False
    error.add_note(f"what had been learnt is in {folder}")
    return True


def _with_folder(error: InputError, folder: Path | None) -> InputError:
    """The same line, which also says where the training can go on."""
    longer = type(error)(f"{error.reason}; what had been learnt is in {folder}", error.name)
    for note in error.__notes__:
        longer.add_note(note)
    return longer
