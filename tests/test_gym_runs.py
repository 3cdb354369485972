"""Whole runs on Gymnasium environments: failures, seeds, snapshots, certified stops."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from adagoal.api import explore as api
from adagoal.core.errors import InputError
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import registry, toy_models
from adagoal.envs.env_backends import InProcessEnv
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.envs.observation_keys import MiniGridKeyReader, _minigrid_object_key
from adagoal.runs import run_folder
from adagoal.runs.load_result import load_result
from adagoal.runs.result import Result
from experiments import extra_models
from model_env import NEVER, Breaking, MersenneTwister, ModelEnv, PairEnv, play, same_counts, with_terminal

# --- failures, seeds, snapshots ---


def test_data_before_a_failure_is_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the motor is on fire \(model_env\.py, line \d+\); what had been learnt"):
        api.explore(Breaking(toy_models.chain_model(n_states=6, slip=0.1)), radius=8, epsilon=0.1, out=tmp_path)
    result = load_result(tmp_path)
    assert result.status == "interrupted"
    assert 700 <= result.steps == result.arrays["visits"].sum()
    assert result.certificates


def test_same_seed_gives_same_run() -> None:
    mdp = toy_models.random_sparse(n_states=10, n_actions=2, seed=3)
    one, two, other = (play(GymAdapter(ModelEnv(mdp, (0, 1)), "model"), 3000, seed)[0] for seed in (1, 1, 2))
    assert same_counts(one, two)
    assert not same_counts(one, other)


@pytest.mark.parametrize("kind", [ModelEnv, PairEnv])
@pytest.mark.parametrize("starts", [(0,), (0, 4, 7)])
@pytest.mark.parametrize("start_seed", [None, 2])
def test_restored_environment_continues_identically(
    kind: type[ModelEnv], starts: tuple[int, ...], start_seed: int | None
) -> None:
    mdp = with_terminal(toy_models.random_sparse(n_states=30, n_actions=2, seed=4), 9)
    for steps in (1, 300, 301, 902):
        whole = GymAdapter(kind(mdp, starts), "model", start_seed)
        counts, _ = play(whole, steps)
        assert whole.is_restorable
        arrays, facts = whole.state()
        facts = json.loads(json.dumps(facts))
        copy = TransitionCounts(counts.n_states, 2, whole.start)
        copy.restore(counts.state())
        resumed = GymAdapter(kind(mdp, starts), "model", start_seed)
        resumed.restore(arrays, facts)
        play(whole, 700, 5, counts=counts)
        play(resumed, 700, 5, counts=copy)
        assert same_counts(counts, copy)
        assert resumed.warnings == resumed.void_reasons == []
        assert resumed.labels == whole.labels


def test_environment_that_cannot_be_replayed_continues_from_a_reset() -> None:
    class OwnGenerator(ModelEnv):
        """Draws with a generator that adagoal does not know."""

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.state = int(dice.integers(self.mdp.n_states))
            return self.state, 0.0, False, False, {}

    dice = np.random.default_rng(0)
    env = GymAdapter(OwnGenerator(toy_models.chain_model(n_states=1000)), "own")
    counts, _ = play(env, 302)
    while env.state()[1]["place"][0] == env.start:
        play(env, 1, counts=counts)
    other = GymAdapter(OwnGenerator(toy_models.chain_model(n_states=1000)), "own")
    other.restore(*env.state())
    assert any("went on from a reset" in line for line in other.warnings)
    play(other, 100, counts=counts)


def test_unsaved_generator_does_not_repeat_numbers_after_a_resume() -> None:
    """Every resumed run sees new samples."""

    class OwnGenerator(ModelEnv):
        """Draws every state from a generator that cannot be saved; ``reset(seed=...)`` seeds it."""

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            if seed is not None:
                self.dice = np.random.default_rng(seed)
            return super().reset(seed=seed, options=options)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.state = int(self.dice.integers(self.mdp.n_states))
            return self.state, 0.0, False, False, {}

    mdp, drawn = toy_models.chain_model(n_states=1000), []
    env = GymAdapter(OwnGenerator(mdp), "own")
    for _ in range(4):
        counts, _ = play(env, 50, goals=[NEVER])
        drawn.append(counts.seen)
        saved, env = env.state(), GymAdapter(OwnGenerator(mdp), "own")
        env.restore(*saved)
    for one in range(4):
        for other in range(one):
            assert (drawn[one] & drawn[other]).sum() < 15  # 50 of 1000: about two or three collide by chance


# --- whole runs ---


def summary(result: Result) -> tuple[Any, ...]:
    return (result.status, result.steps, result.episodes, result.goals, result.certificates)


def test_frozen_lake_by_name_and_as_an_object() -> None:
    by_name = api.explore("FrozenLake-v1", radius=6, epsilon=3.0, env_args={"is_slippery": False})
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    stepped = api.explore(env, radius=6, epsilon=3.0)
    assert by_name.status == stepped.status == "certified"
    assert by_name.goals == stepped.goals
    assert stepped.warnings == stepped.void == []
    assert api.audit(stepped, env).ok
    assert api.audit(by_name).ok


def test_cliff_walking_and_taxi_with_a_small_budget() -> None:
    cliff = api.explore("CliffWalking-v0", radius=4, epsilon=2.0)
    assert cliff.status == "certified"
    taxi = api.explore("Taxi-v3", radius=3, epsilon=2.0, start_seed=0, budget=3000)
    assert taxi.status in ("certified", "budget")
    assert len(taxi.goals) > 5
    objects = api.explore(gymnasium.make("Taxi-v4"), radius=3, epsilon=2.0, start_seed=0, budget=1000)
    assert objects.warnings == objects.void == []


def as_numbered(mdp: TabularMDP, env: GymAdapter, starts: tuple[int, ...], size: int) -> TabularMDP:
    """Return the model of a :class:`PairEnv` in the adapter's numbers of states; unseen states come last."""
    virtual = len(starts) > 1
    shown = [divmod(state, 7) for state in range(mdp.n_states)]

    def numbers(label: str) -> list[str]:
        return label.removesuffix(" (end)").strip("[]").split()

    met = [shown.index((int(a), int(b))) for a, b in map(numbers, env.labels[1:])]
    order = [*([] if virtual else starts), *met]
    order += [state for state in range(mdp.n_states) if state not in order]
    number = {state: i + virtual for i, state in enumerate(order)}
    rows = [{x // mdp.n_actions: 1.0} for x in range(size * mdp.n_actions)]  # unused numbers are isolated states
    terminal = np.zeros(size, bool)
    for state, i in number.items():
        terminal[i] = mdp.terminal[state]
        for action in range(mdp.n_actions):
            successors, probabilities = (values.tolist() for values in mdp.row(state, action))
            rows[i * mdp.n_actions + action] = {number[s]: p for s, p in zip(successors, probabilities, strict=True)}
    if virtual:
        rows[: mdp.n_actions] = [{number[s]: 1 / len(starts) for s in starts}] * mdp.n_actions
    return model_from_rows(rows, mdp.n_actions, start=0, terminal=terminal)


def test_certificates_hold_with_states_numbered_as_found() -> None:
    """Random and fixed starts, terminal and unreachable states, and room for all states or for more."""
    certified = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        make = (toy_models.random_sparse, extra_models.random_deterministic, extra_models.random_unreachable)
        mdp = make[seed % 3](n_states=6, n_actions=2, seed=seed)
        if seed % 2:
            mdp = with_terminal(mdp, 5)
        starts = (0,) if seed % 4 < 2 else (0, 3)
        env = GymAdapter(PairEnv(mdp, starts), "pairs", max_states=int(rng.integers(7, 10)))
        result = api.explore(env, float(rng.uniform(2, 5)), 3.0, seed=seed, budget=4_000)
        verdict = api.audit(result, as_numbered(mdp, env, starts, result.arrays["policy"].shape[2]))
        assert verdict.certificates, verdict.failures
        if result.status == "certified":
            assert verdict.ok, verdict.failures
            certified += 1
    assert certified > 6


class Rendering(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Reads the observation in every step."""

    def step(self, action: Any) -> Any:
        seen, *rest = self.env.step(action)
        assert seen["image"].shape == (7, 7, 3)
        return seen, *rest


@pytest.mark.parametrize("name", ["MiniGrid-DoorKey-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0"])
def test_minigrid_skips_rendering_except_for_wrappers_that_read_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """States do not depend on rendering, and other users of the environment get the rendered observation."""
    grids = pytest.importorskip("minigrid.minigrid_env").MiniGridEnv
    drawn, real = [], grids.gen_obs_grid
    monkeypatch.setattr(grids, "gen_obs_grid", lambda env: drawn.append(0) or real(env))
    plain, wrapped = gymnasium.make(name), Rendering(gymnasium.make(name))
    bodies = InProcessEnv(plain, name), InProcessEnv(wrapped, name)
    assert bodies[0].reset(3)[0] == bodies[1].reset(3)[0]
    before = len(drawn)
    for action in np.random.default_rng(0).integers(bodies[0].spaces.n_actions, size=60).tolist():
        found = [body.step(action) for body in bodies]
        assert found[0] == found[1]
        if found[0][2]:
            assert bodies[0].reset()[0] == bodies[1].reset()[0]
            before += 1
    assert len(drawn) - before == 60
    assert plain.unwrapped.step(0)[0]["image"].shape == (7, 7, 3)


@pytest.mark.parametrize("name", ["MiniGrid-DoorKey-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0", "BabyAI-Unlock-v0"])
def test_keys_of_minigrid_follow_every_change_of_the_grid(name: str) -> None:
    pytest.importorskip("minigrid")
    env: Any = gymnasium.make(name).unwrapped
    env.reset(seed=1)
    read_key, keys = MiniGridKeyReader(env), set()
    for action in np.random.default_rng(0).integers(env.action_space.n, size=400).tolist():
        if env.step(action)[2]:
            env.reset()
        cells = (env.carrying, *env.grid.grid)
        objects = [_minigrid_object_key(thing) for thing in cells]
        expected = bytes((*env.agent_pos, env.agent_dir)) + b"".join(objects) + env.mission.encode()
        assert read_key() == expected
        keys.add(expected)
        # A door changes in place.
        for thing in cells:
            if thing is not None and thing.type == "door" and action == 0:
                thing.is_open = not thing.is_open
    assert len(keys) > 20


def test_minigrid_is_certified(tmp_path: Path) -> None:
    pytest.importorskip("minigrid")
    result = api.explore("MiniGrid-Empty-5x5-v0", radius=4, epsilon=2.0)
    assert result.status == "certified"
    assert result.warnings == result.void == []
    assert len(result.goals) >= 10
    env, _ = registry.make_single_env("MiniGrid-Empty-5x5-v0", {}, None, None)
    counts, _ = play(env, 2000)
    assert (env.state_bound, env.pair_bound) == (10_001, None)
    assert counts.seen.sum() <= 36
    assert "(1, 1) down" in env.labels
    keys, _ = registry.make_single_env("MiniGrid-DoorKey-5x5-v0", {}, 3, None)
    play(keys, 1500)
    assert any("with yellow key" in label for label in keys.labels)
    assert isinstance(keys, GymAdapter)
    assert keys.warnings == keys.void_reasons == []


def test_a_killed_run_resumes_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minigrid")
    monkeypatch.setattr(run_folder, "save_interval_elapsed", lambda since, cost: True)
    rollouts = 0

    def copy_now_and_then(run: Any) -> None:
        nonlocal rollouts
        rollouts += 1
        if rollouts == 12:
            shutil.copytree(tmp_path / "run", tmp_path / "killed")
            monkeypatch.setattr(run_folder, "save_interval_elapsed", lambda since, cost: False)

    arguments: dict[str, Any] = {"radius": 2, "epsilon": 2.0, "seed": 3}
    whole = api.explore("MiniGrid-Empty-5x5-v0", **arguments, out=tmp_path / "run", observe=copy_now_and_then)
    assert rollouts > 20
    assert summary(api.resume(tmp_path / "killed")) == summary(whole)


def test_every_numpy_generator_is_restored(tmp_path: Path) -> None:
    mdp = toy_models.chain_model(n_states=5, slip=0.2)
    whole = api.explore(MersenneTwister(mdp), radius=6, epsilon=2.0)
    api.explore(MersenneTwister(mdp), radius=6, epsilon=2.0, budget=1000, out=tmp_path)
    with pytest.raises(InputError, match="pass the object again"):
        api.resume(tmp_path, 10**9)
    with pytest.raises(InputError, match=r"is on object:MersenneTwister, not on object:ModelEnv"):
        api.resume(tmp_path, 10**9, env=ModelEnv(mdp))
    assert summary(api.resume(tmp_path, 10**9, env=MersenneTwister(mdp)))[0] == whole.status == "certified"


def test_observer_error_is_not_reported_as_environment_failure() -> None:
    def observe(run: Any) -> None:
        raise ValueError("my display broke")

    with pytest.raises(InputError, match=r"^observe: the function raised ValueError: my display broke"):
        api.explore("chain", 5, observe=observe)


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("goals", 5, "goals"),
        ("goal_rule", 5, "goal.rule"),
        ("env_args", [1], "env_args"),
        ("start_seed", "a", "start_seed"),
        ("max_states", 2.5, "max_states"),
    ],
)
def test_arguments_of_wrong_type_give_one_line_error(argument: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        api.explore("grid", 3, **{argument: value})


def test_numpy_numbers_can_be_saved(tmp_path: Path) -> None:
    api.explore("grid", np.float32(3), env_args={"rows": np.int64(3)}, seed=np.int64(1), out=tmp_path)
    assert api.audit(load_result(tmp_path)).ok
