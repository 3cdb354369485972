"""``check_env`` reports problems of an environment before a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from scipy import sparse

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.deep.pointmass import PointMass
from adagoal.envs import toy_models
from model_env import Aliased, Breaking, ModelEnv, NoReset, PairEnv, SelfTruncating, with_terminal

SLIPPERY = toy_models.chain_model(n_states=6, slip=0.1)


def test_correct_environment_passes() -> None:
    check = adagoal.check_env(ModelEnv(with_terminal(toy_models.chain_model(n_states=6, slip=0.1), 5)))
    assert check.ok
    assert (check.errors, check.void, check.warnings, check.exit_code) == ([], [], [], 0)
    assert (check.n_actions, check.n_states, check.states_met, check.ends_met) == (2, 6, 6, 1)
    assert check.fixed_start
    assert check.seed_decides
    assert check.one_generator
    assert check.in_space
    assert not check.action_masks
    assert not check.known_model
    assert check.time_limit is None
    assert check.steps == 2000
    assert check.steps_per_second is not None
    assert check.steps_per_second > 0
    assert any("share of delta" in line for line in check.plan)
    assert str(check).splitlines()[0].endswith(": adagoal can explore it")


def test_states_numbered_as_found_and_random_start_are_reported() -> None:
    check = adagoal.check_env(PairEnv(SLIPPERY, (0, 3)), max_states=50)
    assert check.ok
    assert check.n_states is None
    assert not check.fixed_start
    assert any("numbers new states in order, at most 50" in line for line in check.plan)
    assert any("virtual start" in line for line in check.plan)
    fixed = adagoal.check_env(PairEnv(SLIPPERY, (0, 3)), start_seed=2)
    assert fixed.fixed_start


@pytest.mark.parametrize("kind", [Aliased, NoReset])
def test_violations_that_void_a_certificate_are_reported(kind: type[ModelEnv]) -> None:
    check = adagoal.check_env(kind(toy_models.chain_model(n_states=12, slip=0.1)), steps=10_000)
    assert not check.ok
    assert check.exit_code == 1
    assert check.void
    assert "its certificates would be void" in str(check)


def test_state_that_ends_only_some_episodes_is_reported() -> None:
    class Merged(ModelEnv):
        def observe(self) -> int:
            return min(self.state, 2)

    check = adagoal.check_env(Merged(with_terminal(toy_models.chain_model(n_states=6), 3)))
    assert any("ended the episode at one visit and not at another" in line for line in check.void)


def test_environment_error_is_reported() -> None:
    check = adagoal.check_env(Breaking(SLIPPERY))
    assert (check.exit_code, check.errors) == (1, [])
    assert any("the motor is on fire" in line for line in check.void)


class NoSpaces(gymnasium.Env[int, int]):
    """An environment whose author forgot the spaces."""


class TwoSwitches(NoSpaces):
    action_space: spaces.Space[Any] = spaces.MultiDiscrete([2, 2])


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (NoSpaces(), "env: NoSpaces has actions of type NoneType; they must be Discrete, number them in a wrapper"),
        (TwoSwitches(), "env: TwoSwitches has actions of type MultiDiscrete; they must be Discrete, number them in a "),
    ],
)
def test_wrong_action_spaces_are_reported(env: gymnasium.Env[Any, Any], line: str) -> None:
    [error] = adagoal.check_env(env).errors
    assert error.replace("object:", "").startswith(line)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CartPole-v1", "continuous observations"),
        ("Pendulum-v1", "actions of type Box; they must be Discrete"),
        (
            "failing_envs:OldStep-v0",
            "step() must return (observation, reward, terminated, truncated, info), it returned 4",
        ),
        ("failing_envs:OldReset-v0", "reset() must return (observation, info), it returned int; this is the interface"),
        ("failing_envs:PairReset-v0", "reset() must return (observation, info), it returned 2 values"),
        ("failing_envs:NoStep-v0", "it returned NoneType"),
        ("failing_envs:LongStep-v0", "it returned 6 values"),
        ("failing_envs:Unmakeable-v0", "cannot be made (SystemExit: no licence)"),
        ("NoSuch-v0", "unknown environment"),
    ],
)
def test_unsupported_environments_are_reported(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", name, "--json"]) == 2
    output = json.loads(capsys.readouterr().out)
    assert not output["ok"]
    assert said in " ".join(output["errors"])


def test_module_in_the_current_folder_is_imported_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if the user names it, and it does not hide an installed module."""
    (tmp_path / "switch_in_a_folder.py").write_text(
        "import gymnasium as gym\n\n"
        "class Switch(gym.Env):\n"
        "    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(1)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return 0, {}\n"
        "    def step(self, action):\n"
        "        return 1, 0.0, False, False, {}\n\n"
        "gym.register('Switch-v0', entry_point='switch_in_a_folder:Switch')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run_command_line(["check", "grid"]) == 0
    assert str(tmp_path) not in sys.path
    assert run_command_line(["check", "switch_in_a_folder:Switch-v0"]) == 0
    assert sys.path[-1] == str(tmp_path)
    explore = ["explore", "switch_in_a_folder:Switch-v0", "--radius", "3", "--budget", "40", "--out", "run", "--quiet"]
    assert run_command_line(explore) == 3
    sys.path.remove(str(tmp_path))
    del sys.modules["switch_in_a_folder"], gymnasium.registry["Switch-v0"]
    assert run_command_line(["resume", "run", "--budget", "50", "--quiet"]) == 2
    assert run_command_line(["resume", "run", "--budget", "50", "--quiet", "--trust"]) == 3
    assert run_command_line(["audit", "run", "--env", "switch_in_a_folder:Switch-v0"]) == 2, "no model is known"


def test_unseeded_randomness_is_reported() -> None:
    class Own(ModelEnv):
        dice = np.random.default_rng(0)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return super().step(int(self.dice.integers(2)))

    class Seeded(Own):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            if seed is not None:
                self.dice = np.random.default_rng(seed)
            return super().reset(seed=seed)

    for kind, decides in ((Own, False), (Seeded, True)):
        check = adagoal.check_env(kind(SLIPPERY))
        assert (check.seed_decides, check.one_generator, check.ok) == (decides, False, True)
        assert any("bit for bit" in line for line in check.warnings)
    assert any("all episodes draw the same" in line for line in adagoal.check_env(Seeded(SLIPPERY), start_seed=1).void)


def test_time_limits_masks_and_observations_outside_their_space_are_reported() -> None:
    class Masked(ModelEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return super().reset(seed=seed)[0], {"action_mask": np.ones(2, np.int8)}

    class Outside(PairEnv):
        def observe(self) -> Any:
            return super().observe() + 2000

    assert adagoal.check_env(wrappers.TimeLimit(ModelEnv(SLIPPERY), 7)).time_limit == 7
    masked = adagoal.check_env(Masked(SLIPPERY))
    assert masked.action_masks
    assert any("leaves out the actions that masks" in line for line in masked.plan)
    outside = adagoal.check_env(Outside(SLIPPERY))
    assert outside.in_space is False
    assert outside.ok
    assert any("truncated" in line for line in adagoal.check_env(SelfTruncating(SLIPPERY)).warnings)


def test_known_models_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for name, states, fixed in (("two-room", 52, True), ("FrozenLake-v1", 16, True), ("Taxi-v4", 501, False)):
        check = adagoal.check_env(name)
        assert (check.ok, check.known_model, check.n_states, check.fixed_start) == (True, True, states, fixed)
        assert "can be audited" in check.plan
    stepped = adagoal.check_env(gymnasium.make("FrozenLake-v1"))
    assert stepped.known_model
    assert stepped.time_limit == 100
    assert run_command_line(["check", "chain", "--env-arg", "n_states=4"]) == 0
    assert "states declared          4" in capsys.readouterr().out


def test_models_and_matrices_are_checked() -> None:
    matrix = SLIPPERY.kernel().toarray().reshape(6, 2, 6)
    for env, name in ((SLIPPERY, "chain"), (matrix, "matrix"), ([matrix[:, 0], matrix[:, 1]], "matrix")):
        brought = [sparse.csr_matrix(part) for part in env] if isinstance(env, list) else env
        check = adagoal.check_env(brought)
        assert (check.ok, check.env, check.known_model, check.n_states, check.n_actions) == (True, name, True, 6, 2)
        assert check.fixed_start
        assert check.plan == adagoal.check_env("chain").plan
    assert adagoal.check_env(matrix / 2).errors == ["state 0, action 0: the probabilities sum to 0.5, not to one"]
    assert adagoal.check_env(matrix, start="random").errors[0].startswith("start: random is for Gymnasium")
    assert adagoal.check_env(SLIPPERY, env_args={"slip": 0}).errors[0].startswith("env_args: chain is a complete model")
    assert adagoal.check_env(SLIPPERY, set_goal=ignored_hook).errors[0].startswith("set_goal: works for")


def test_hanging_environment_is_reported() -> None:
    check = adagoal.check_env("failing_envs:Hangs-v0", step_timeout=1)
    assert check.exit_code == 1
    assert any("took longer than 1 s" in line for line in check.void)
    slow = adagoal.check_env("failing_envs:Slow-v0", step_timeout=1)
    assert slow.exit_code == 2
    fine = adagoal.check_env("failing_envs:Chain-v0", step_timeout=20, steps=300)
    assert (fine.ok, fine.one_generator, fine.in_space) == (True, True, None)
    assert "cannot be sent" in adagoal.check_env(ModelEnv(SLIPPERY), step_timeout=1).errors[0]


def test_goal_conditioned_environment_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", "point-mass", "--json", "--steps", "200"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["goal_size"], output["time_limit"], output["steps"], output["warnings"]) == (2, 25, 200, [])
    assert output["takes_goals"]
    assert output["seed_decides"]
    assert output["reached_within"] == pytest.approx(0.1)
    assert "chooses goals within L = 20 steps, with the discount 0.96" in output["plan"]
    assert "needs up to 0.8 GB of memory for 400,000 steps, without its workers" in output["plan"]
    assert run_command_line(["check", "point-mass", "--max-states", "9"]) == 2
    assert "error: --max-states: is for explorations; this environment is for adagoal train" in capsys.readouterr().out


def test_goal_conditioned_environment_from_a_module_or_with_a_wrapper() -> None:
    assert adagoal.check_env("adagoal.deep.pointmass:PointMass-v0", steps=50).errors == []
    assert adagoal.check_env(wrappers.TimeLimit(PointMass(), 7), steps=50).time_limit == 7


def ignored_hook(env: Any, goal: Any) -> None:
    """A hook that does nothing."""


def test_problems_for_training_are_reported() -> None:
    class IgnoresGoals(PointMass):
        """Ignores the chosen goal and uses an unseeded generator."""

        dice = np.random.default_rng(0)

        def set_goal(self, goal: Any) -> None:
            """Ignore the goal."""

        def step(self, action: Any) -> Any:
            return super().step(action * self.dice.random())

    class Dense(PointMass):
        def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
            return -np.linalg.norm(np.asarray(achieved_goal) - desired_goal, axis=-1)

    class Tired(PointMass):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps > 60:
                raise RuntimeError("the motor is hot")
            return super().step(action)

    class Picture(PointMass):
        """Observations of 576 numbers, so training stores about 2,300 bytes per step, twice."""

        def _goal_observation(self) -> Any:
            seen = super()._goal_observation()
            return seen | {"observation": np.resize(seen["observation"], (24, 24))}

    picture = adagoal.check_env(Picture(), steps=50).memory
    assert picture is not None
    assert 0.8e9 + 2 * 400_000 * 576 * 4 < picture < 0.8e9 + 2 * 400_000 * 600 * 4
    deaf = adagoal.check_env(IgnoresGoals(), steps=50)
    assert deaf.ok
    assert deaf.takes_goals is False
    assert any("the environment has no time limit" in line for line in deaf.warnings)
    assert any("cannot set the goal of the environment" in line for line in deaf.plan)
    assert any("the same seed does not give the same steps" in line for line in deaf.warnings)
    hooked = adagoal.check_env(IgnoresGoals(), set_goal=ignored_hook)
    assert (hooked.exit_code, hooked.errors[0].split(": ")[0]) == (2, "set_goal")
    assert "dense reward" in adagoal.check_env(Dense()).errors[0]
    assert "the motor is hot" in adagoal.check_env(Tired()).errors[0]
    assert (
        adagoal.check_env(ModelEnv(SLIPPERY), set_goal=lambda env, goal: None)
        .errors[0]
        .startswith("set_goal: works for")
    )


def test_error_in_close_is_reported() -> None:
    assert adagoal.check_env("failing_envs:Unclosable-v0", steps=100).ok


def test_prints_of_the_environment_are_counted_and_kept_out_of_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", "failing_envs:Chatty-v0", "--json", "--steps", "300"]) == 0
    output = json.loads(capfd.readouterr().out)
    assert output["printed"] > 10
    assert any("the environment prints" in line for line in output["warnings"])


def test_observations_that_never_repeat_are_reported() -> None:
    class Clock(gymnasium.Env[Any, Any]):
        observation_space = spaces.MultiDiscrete([100_000])
        action_space = spaces.Discrete(2)
        time = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return np.zeros(1, np.int64), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.time += 1
            return np.array([self.time]), 0.0, False, False, {}

    assert any("nearly every observation is new" in line for line in adagoal.check_env(Clock(), steps=500).warnings)
    assert not any("nearly every" in line for line in adagoal.check_env(PairEnv(SLIPPERY), steps=500).warnings)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(adagoal.InputError, match=r"^steps: "):
        adagoal.check_env("chain", steps=0)
    with pytest.raises(adagoal.InputError, match=r"^max_states: "):
        adagoal.check_env("chain", max_states=1)
    assert "must be a name" in adagoal.check_env(5).errors[0]  # type: ignore[arg-type]
    odd = ModelEnv(SLIPPERY)
    odd.observation_space = spaces.Graph(spaces.Box(0, 1), None)
    assert "cannot be compared exactly" in adagoal.check_env(odd).errors[0]


def test_command_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", "grid", "--env-arg", "foo=3"]) == 2
    assert "error: --env-arg: grid has no argument 'foo'; it accepts " in capsys.readouterr().out
    assert run_command_line(["check", "grid", "--env-arg", "foo=3", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0].startswith("--env-arg: grid has no argument 'foo'")


def test_class_in_place_of_an_object_is_named() -> None:
    lines = str(adagoal.check_env(ModelEnv)).splitlines()
    assert lines[0] == "ModelEnv: adagoal cannot use it"
    assert "pass an object: ModelEnv(...)" in lines[1]
