"""What a live page of an exploration shows: the run of this process, or the one in a folder, whoever writes there."""

from __future__ import annotations

import threading
from pathlib import Path

from adagoal.api import explore as api
from adagoal.core.errors import InputError
from adagoal.core.files import busy
from adagoal.core.status import Status
from adagoal.report import data
from adagoal.report.packed import packed
from adagoal.report.page import block, page
from adagoal.runs import saved
from adagoal.runs.result import Result, load, must_be_exploration
from adagoal.runs.saved import Saved
from adagoal.runs.signals import ask_to_stop
from adagoal.runs.view import View

Shown = tuple[Result, View]


class LiveRun:
    """A run of this process, which publishes its answers as it goes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stamp = folder, 0
        self._now: Shown | None = None

    def publish(self, result: Result, view: View) -> None:
        """Show this from now on."""
        self._now = result, view
        self._stamp += 1

    def stamp(self) -> str:
        """The number of the answer."""
        return str(self._stamp)

    def page(self) -> str:
        """The page of the last answer."""
        return page(*self._shown(), self._folder, {}, live=True)

    def block(self) -> bytes:
        """Its data."""
        return block(*self._shown(), self._folder, running=True)

    def policy(self, goal: int) -> bytes:
        """One of its policies."""
        return packed({}, data.policy(self._shown()[0], goal))

    def stop(self) -> None:
        """Ask the run to stop."""
        ask_to_stop(self._folder)

    def _shown(self) -> Shown:
        if self._now is None:
            raise InputError("the run has not begun")
        return self._now


class FolderRun:
    """The run in a folder: its result or, while it goes on, what its last checkpoint would answer."""

    def __init__(self, folder: Path, env: api.Again = None, trust: bool = False) -> None:
        self._folder, self._env, self._trust = folder, env, trust
        self._lock = threading.Lock()
        self._cached: tuple[str, Shown] | None = None

    def stamp(self) -> str:
        """Of the last save, and whether a run is going on."""
        return f"{saved.stamp(self._folder)} {busy(self._folder)}"

    def page(self) -> str:
        """The page of the last save."""
        return page(*self._shown(), self._folder, {}, live=True)

    def block(self) -> bytes:
        """Its data."""
        return block(*self._shown(), self._folder, running=busy(self._folder))

    def policy(self, goal: int) -> bytes:
        """One of its policies."""
        return packed({}, data.policy(self._shown()[0], goal))

    def stop(self) -> None:
        """Ask the run to stop."""
        if not busy(self._folder):
            raise InputError(f"{self._folder}: no run is going on there")
        ask_to_stop(self._folder)

    def _shown(self) -> Shown:
        with self._lock:
            now = str(saved.stamp(self._folder))
            if self._cached is None or self._cached[0] != now:
                self._cached = now, self._read()
            return self._cached[1]

    def _read(self) -> Shown:
        if saved.read(self._folder, _answered):
            result = load(self._folder)
            return result, result.view
        with api.restored(self._folder, self._env, self._trust) as session:
            return session.result(Status.INTERRUPTED), View.of(session.run.world)


def _answered(found: Saved) -> bool:
    """Whether the result is of the last save, and not older than the checkpoint."""
    must_be_exploration(found)
    result = found.manifest.results.get("result.json")
    states = [entry.generation for state in found.manifest.states[:1] for entry in state.values()]
    return result is not None and result.generation >= max(states, default=0)
