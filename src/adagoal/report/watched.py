"""What a live page of an exploration shows: the run of this process, or the one in a folder, whoever writes there."""

from __future__ import annotations

import threading
from pathlib import Path

from adagoal.api import explore as api
from adagoal.core.errors import InputError
from adagoal.core.files import is_folder_locked
from adagoal.core.status import Status
from adagoal.report import data
from adagoal.report.packed import pack_data_block
from adagoal.report.page import pack_exploration_data, render_exploration_page
from adagoal.runs import saved
from adagoal.runs.result import Result, load_result, require_exploration
from adagoal.runs.saved import SavedRun
from adagoal.runs.signals import request_stop
from adagoal.runs.view import StateMetadata

ResultAndView = tuple[Result, StateMetadata]


class LiveRunSource:
    """A run of this process, which publishes its answers as it goes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._version = folder, 0
        self._published: ResultAndView | None = None

    def publish_result(self, result: Result, view: StateMetadata) -> None:
        """Show this from now on."""
        self._published = result, view
        self._version += 1

    def version_stamp(self) -> str:
        """The number of the answer."""
        return str(self._version)

    def render_page(self) -> str:
        """The page of the last answer."""
        return render_exploration_page(*self._current_result(), self._folder, {}, live=True)

    def pack_data(self) -> bytes:
        """Its data."""
        return pack_exploration_data(*self._current_result(), self._folder, running=True)

    def pack_policy(self, goal: int) -> bytes:
        """One of its policies."""
        return pack_data_block({}, data.policy_arrays(self._current_result()[0], goal))

    def request_stop(self) -> None:
        """Ask the run to stop."""
        request_stop(self._folder)

    def _current_result(self) -> ResultAndView:
        if self._published is None:
            raise InputError("the run has not begun")
        return self._published


class RunFolderSource:
    """The run in a folder: its result or, while it goes on, what its last checkpoint would answer."""

    def __init__(self, folder: Path, env: api.EnvOverride = None, trust: bool = False) -> None:
        self._folder, self._env, self._trust = folder, env, trust
        self._lock = threading.Lock()
        self._cached: tuple[str, ResultAndView] | None = None

    def version_stamp(self) -> str:
        """Of the last save, and whether a run is going on."""
        return f"{saved.last_commit_stamp(self._folder)} {is_folder_locked(self._folder)}"

    def render_page(self) -> str:
        """The page of the last save."""
        return render_exploration_page(*self._current_result(), self._folder, {}, live=True)

    def pack_data(self) -> bytes:
        """Its data."""
        return pack_exploration_data(*self._current_result(), self._folder, running=is_folder_locked(self._folder))

    def pack_policy(self, goal: int) -> bytes:
        """One of its policies."""
        return pack_data_block({}, data.policy_arrays(self._current_result()[0], goal))

    def request_stop(self) -> None:
        """Ask the run to stop."""
        if not is_folder_locked(self._folder):
            raise InputError(f"{self._folder}: no run is going on there")
        request_stop(self._folder)

    def _current_result(self) -> ResultAndView:
        with self._lock:
            now = str(saved.last_commit_stamp(self._folder))
            if self._cached is None or self._cached[0] != now:
                self._cached = now, self._read_result()
            return self._cached[1]

    def _read_result(self) -> ResultAndView:
        if saved.read_saved_run(self._folder, _result_is_current):
            result = load_result(self._folder)
            return result, result.view
        with api.open_restored_session(self._folder, self._env, self._trust) as session:
            return session.result(Status.INTERRUPTED), StateMetadata.from_env(session.run.env)


def _result_is_current(found: SavedRun) -> bool:
    """Whether the result is of the last save, and not older than the checkpoint."""
    require_exploration(found)
    result = found.manifest.results.get("result.json")
    states = [entry.generation for state in found.manifest.checkpoints[:1] for entry in state.values()]
    return result is not None and result.generation >= max(states, default=0)
