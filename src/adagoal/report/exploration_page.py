"""``report.html`` of an exploration, and the live pages of a run in this process or in a folder."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from adagoal.core.errors import InputError, Status
from adagoal.core.file_io import is_folder_locked
from adagoal.report import exploration_panels
from adagoal.report.exploration_panels import ExplorationSource, guarantee_badge
from adagoal.report.html_page import ReportPage, pack_data_block, require_figures_extra
from adagoal.report.live_server import ReportSource
from adagoal.runs import run_folder
from adagoal.runs.exploration_files import load_result, require_exploration
from adagoal.runs.job import request_stop
from adagoal.runs.result import Result, StateMetadata
from adagoal.runs.run_folder import RunKind, SavedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from adagoal.api.explore import EnvOverride


def write_report(result: Result, folder: str | Path, png: bool = False) -> Path:
    """Write ``report.html`` into the folder of a run and return its path.

    ``png`` also writes the figures as PNG files. The metadata of the states are saved too. Everything is written in one
    commit: after a kill either all files are new or none.
    """
    figures: dict[str, Figure] = {}
    if png:
        require_figures_extra()
        from adagoal.report.figures import exploration_figures  # imports Matplotlib, which takes a second

        figures = exploration_figures(result)
    page = exploration_page(ExplorationSource(result, result.view, Path(folder)))
    return page.save(Path(folder), RunKind.EXPLORATION, result.view.file_contents(), figures)


def exploration_page(source: ExplorationSource) -> ReportPage:
    """Return the page of an exploration."""
    badge = guarantee_badge(source.result)
    return ReportPage.collect(f"adagoal: {source.result.setting.env}", exploration_panels.PANELS, source, badge)


class ExplorationReportSource(ReportSource):
    """The live page of an exploration."""

    def current_source(self) -> ExplorationSource:
        """Return the latest result, or raise InputError before the first one."""
        raise NotImplementedError

    def current_page(self) -> ReportPage:
        return exploration_page(self.current_source())

    def pack_policy(self, goal: int) -> bytes:
        return pack_data_block({}, exploration_panels.policy_arrays(self.current_source().result, goal))


class LiveRunSource(ExplorationReportSource):
    """A run of this process, which publishes its result from time to time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._version = 0
        self._published: ExplorationSource | None = None

    def publish_result(self, result: Result, states: StateMetadata) -> None:
        """Show this result from now on."""
        self._published = ExplorationSource(result, states, self.folder)
        # After the result: a browser that saw the new number with the old result would not ask for the new one.
        self._version += 1

    def version_stamp(self) -> str:
        return str(self._version)

    def is_running(self) -> bool:
        return True  # the server ends with the run

    def current_source(self) -> ExplorationSource:
        if self._published is None:
            raise InputError("the run has not started yet")
        return self._published


class RunFolderSource(ExplorationReportSource):
    """The run in a folder: its result or, during the run, the result that its last checkpoint gives."""

    def __init__(self, folder: Path, env: EnvOverride = None, trust: bool = False) -> None:
        super().__init__(folder)
        self._env, self._trust = env, trust
        self._lock = threading.Lock()
        self._cached: tuple[str, ExplorationSource] | None = None

    def request_stop(self) -> None:
        # The next run removes old requests, so without a run this one would have no effect.
        if not is_folder_locked(self.folder):
            raise InputError(f"{self.folder}: no run is active there")
        request_stop(self.folder)

    def current_source(self) -> ExplorationSource:
        """Return the result of the last save. Requests come from several threads, so only one of them reads."""
        with self._lock:
            # The stamp comes first: if the run saves in between, the next request reads again.
            stamp = str(run_folder.last_commit_stamp(self.folder))
            if self._cached is None or self._cached[0] != stamp:
                self._cached = stamp, self._read_source()
            return self._cached[1]

    def _read_source(self) -> ExplorationSource:
        # Reading a result takes less than restoring a run, which needs its environment and perhaps code to trust.
        if run_folder.read_saved_run(self.folder, _result_is_current):
            result = load_result(self.folder)
            return ExplorationSource(result, result.view, self.folder)
        # Learners and Gymnasium, which `adagoal report` does without, take a third of a second to import.
        from adagoal.api.explore import open_restored_session

        with open_restored_session(self.folder, self._env, self._trust) as session:
            states = StateMetadata.from_env(session.run.env)
            return ExplorationSource(session.result(Status.INTERRUPTED), states, self.folder)


def _result_is_current(saved_run: SavedRun) -> bool:
    # A resumed run leaves the old result in the folder while its checkpoints are newer.
    require_exploration(saved_run)
    result = saved_run.manifest.results.get("result.json")
    checkpoints = [entry.generation for state in saved_run.manifest.checkpoints[:1] for entry in state.values()]
    return result is not None and result.generation >= max(checkpoints, default=0)
