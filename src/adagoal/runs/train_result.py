"""What a training returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from adagoal.core.argument_checks import check_folder_path, check_integer
from adagoal.core.errors import InputError, Status
from adagoal.core.types import Floats
from adagoal.deep.certification import Certification
from adagoal.deep.goal_envs import EnvSource
from adagoal.deep.policy import GoalPolicy
from adagoal.deep.policy_evaluation import Evaluation, evaluate_policy
from adagoal.deep.training_history import TrainingHistory
from adagoal.runs import training_files as files
from adagoal.runs.run_folder import open_locked_folder
from adagoal.runs.training_files import TRAINING_KIND


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a training: ``result.policy(observation, goal)`` acts; the folder, if any, holds the rest."""

    status: Status
    """``done``, ``budget`` (the minutes were spent) or ``interrupted``. A training until certified is ``certified``, or
    ``budget`` also where its steps were spent."""
    history: TrainingHistory
    policies: Sequence[GoalPolicy]
    """One for each of the runs side by side."""
    maps: dict[str, Floats]
    """Final D and E over the training space (see :meth:`adagoal.deep.training.Training.final_value_maps`)."""
    folder: Path | None
    source: EnvSource
    """Makes the environment again, for tests."""
    notes: Sequence[str] = ()
    """What was found damaged in the folder of a resumed training, and what was used instead."""
    certificate: Certification | None = None
    """Of a training until certified: what the last attempt found; None where it was ended before the first."""

    def __repr__(self) -> str:
        config, last = self.history.configs[0], self.history.learning_curve(0)[-1]
        return f"<TrainResult of {config.env}, {self.status}: success {last['success']:.2f} at {last['steps']:,} steps>"

    @property
    def policy(self) -> GoalPolicy:
        """The policy of the first run."""
        return self.policies[0]

    @property
    def success(self) -> float:
        """Share of the last test's goals that the first run held at the last step."""
        return float(self.history.learning_curve(0)[-1]["success"])

    def curve(self, run: int = 0) -> list[dict[str, Any]]:
        """The tests of a run, each with its steps and success."""
        return self.history.learning_curve(self._check_run_index(run))

    def weights(self, run: int = 0) -> dict[str, NDArray[Any]]:
        """All that a run has learnt, as named arrays."""
        return self.policies[self._check_run_index(run)].weights()

    def evaluate(
        self, episodes: int = 200, *, test_goals: str | None = None, seed: int = 0, run: int = 0
    ) -> Evaluation:
        """Play episodes without noise, on the test goals of the training or on others."""
        config = self.history.configs[self._check_run_index(run)]
        goals = test_goals or config.test_goals
        return evaluate_policy(self.policies[run], self.source, config.horizon, goals, episodes, seed)

    def _check_run_index(self, run: int) -> int:
        """The number of a run, which must be one of those side by side."""
        check_integer("run", run, 0, len(self.policies) - 1)
        return run

    def save(self, path: str | Path) -> None:
        """Write the result into a folder that holds no run yet; :func:`adagoal.load` gives the policy back.

        A training that is to go on later needs its checkpoints, which it keeps if it is given ``out``.
        """
        with open_locked_folder(check_folder_path("path", path), TRAINING_KIND) as folder:
            if folder.saved_run is not None:
                raise InputError(f"{folder.path} already holds a run; choose another folder", name="path")
            folder.save_files({}, files.training_file_contents(self.status, self.history, self.policies, self.maps))
