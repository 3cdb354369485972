"""Result of training, and how it is saved and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

import adagoal  # see adagoal.runs.result
from adagoal.certification.certificate import Certification
from adagoal.core.argument_checks import check_folder_path, check_integer
from adagoal.core.errors import InputError, Status
from adagoal.core.file_io import FileContents
from adagoal.core.types import Floats
from adagoal.deep.goal_envs import EnvSource
from adagoal.deep.policy import GoalPolicy
from adagoal.deep.policy_evaluation import Evaluation, evaluate_policy
from adagoal.deep.training_history import TrainingHistory
from adagoal.runs import training_files as files
from adagoal.runs.folder_reader import RunKind, SavedRun, read_saved_run
from adagoal.runs.result import to_data_frame
from adagoal.runs.result_text import training_to_html
from adagoal.runs.run_folder import open_locked_folder


@dataclass(frozen=True)
class TrainResult:
    """Outcome of :func:`adagoal.train`, which acts with ``policy(observation, goal)``."""

    # done, budget (the minutes were spent) or interrupted. Training until certified ends as certified, or as budget if
    # its steps or minutes were spent first.
    status: Status
    history: TrainingHistory
    policies: Sequence[GoalPolicy]  # one for each of the runs side by side
    maps: dict[str, Floats]  # final D and E over the training space; empty if the folder was saved before the end
    folder: Path | None
    source: EnvSource | None = None  # makes the environment for tests; None for a result that was loaded
    notes: Sequence[str] = ()  # what was found damaged in the folder of a resumed run, and what was used instead
    certificate: Certification | None = None  # the last attempt of training until certified

    def __repr__(self) -> str:
        config, last = self.history.configs[0], self.history.learning_curve(0)[-1]
        return f"<TrainResult of {config.env}, {self.status}: success {last['success']:.2f} at {last['steps']:,} steps>"

    def _repr_html_(self) -> str:
        return training_to_html(self)

    @property
    def policy(self) -> GoalPolicy:
        """The policy of the first run."""
        return self.policies[0]

    @property
    def success(self) -> float:
        """Share of the last test's goals that the first run held at the last step."""
        return float(self.history.learning_curve(0)[-1]["success"])

    def curve(self, run: int = 0) -> list[dict[str, Any]]:
        """Return the tests of a run, each with its steps and success."""
        return self.history.learning_curve(self._check_run_index(run))

    def frame(self) -> Any:
        """Return the tests of all runs as a pandas data frame, one row per test."""
        configs = enumerate(self.history.configs)
        named = [(run, {"goal_rule": config.goal_rule, "seed": config.seed}) for run, config in configs]
        return to_data_frame([names | row for run, names in named for row in self.curve(run)])

    def plot(self) -> Any:
        """Return a Matplotlib figure: the success in the tests over the steps."""
        return adagoal.plot(self)

    def weights(self, run: int = 0) -> dict[str, NDArray[Any]]:
        """Return all that a run has learnt, as named arrays."""
        return self.policies[self._check_run_index(run)].weights()

    def evaluate(
        self,
        episodes: int = 200,
        *,
        test_goals: str | None = None,
        seed: int = 0,
        run: int = 0,
        env: Any = None,
        trust: bool = False,
    ) -> Evaluation:
        """Play episodes without noise, on the test goals of the training run or on others.

        For a result that was loaded, ``env`` gives an environment again that was an object, or one ``module:Id`` whose
        code only the folder names; ``trust`` allows that code to run.
        """
        config = self.history.configs[self._check_run_index(run)]
        source = self.env_source(env, trust, "adagoal.load({}).evaluate(env=...)")
        goals = test_goals or config.test_goals
        return evaluate_policy(self.policies[run], source, config.horizon, goals, episodes, seed)

    def env_source(self, env: Any, trust: bool, call: str) -> EnvSource:
        """Return what makes the environment; ``call`` is what to type if it must be given again."""
        # A result that was not loaded still has the caller's environment, so no code of a folder is involved.
        if env is None and self.source is not None:
            return self.source
        return files.resolve_training_env(self.folder, self.history.configs[0], env, trust, call)

    def _check_run_index(self, run: int) -> int:
        check_integer("run", run, 0, len(self.policies) - 1)
        return run

    def contents(self) -> FileContents:
        """Return the files of the result."""
        return files.training_file_contents(self.status, self.history, self.policies, self.maps)

    def save(self, path: str | Path) -> None:
        """Write the result into a folder that holds no run yet; such a folder cannot be resumed.

        To resume a run later, give :func:`adagoal.train` the folder as ``out``.
        """
        with open_locked_folder(check_folder_path("path", path), RunKind.TRAINING) as folder:
            if folder.saved_run is not None:
                raise InputError(f"{folder.path} already holds a run; choose another folder", name="path")
            folder.save_files({}, self.contents())


def load_training(path: str | Path) -> TrainResult:
    """Load the result of training; nothing in the files is executed, and no environment is made."""
    return read_saved_run(check_folder_path("path", path), _load_saved_training)


def _load_saved_training(saved: SavedRun) -> TrainResult:
    record = files.read_training_record(saved)
    policies = files.read_policies(saved, record)
    history, maps = files.read_history(saved, record, policies[0])
    return TrainResult(Status(record.data["status"]), history, policies, maps, saved.path, notes=saved.damage_notes)
