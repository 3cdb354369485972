"""Environments by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text import TaxiEnv

from adagoal.core.errors import InputError
from adagoal.core.validation import parse_key_value
from adagoal.envs import registry
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.simulator import ModelSimulator


@pytest.mark.parametrize("name", sorted(set(registry.MODEL_BUILDERS) - {"grid-file"}))
def test_built_in_environments_have_models(name: str) -> None:
    env, shown = registry.make_single_env(name, {}, None, None)
    model = registry.make_exact_model(name, {}, None)
    assert isinstance(env, ModelSimulator)
    assert shown == name
    assert model is not None
    assert model.n_states == env.state_bound
    assert registry.make_exact_model(env, {}, None) is env.mdp


def test_arguments_reach_the_builder(tmp_path: Any) -> None:
    arguments = dict(map(parse_key_value, ["rows=3", "cols=2", "slip=0"]))
    assert arguments == {"rows": 3, "cols": 2, "slip": 0}
    assert registry.make_single_env("grid", arguments, None, None)[0].state_bound == 6
    (tmp_path / "tiny.txt").write_text("S.\n.#\n")
    assert registry.make_single_env("grid-file", {"path": str(tmp_path / "tiny.txt")}, None, None)[0].state_bound == 3
    assert dict(map(parse_key_value, ["map_name=8x8", "is_slippery=true"])) == {"map_name": "8x8", "is_slippery": True}


@pytest.mark.parametrize(
    ("env", "arguments", "words"),
    [
        ("two-rom", {}, "unknown environment 'two-rom'; did you mean two-room"),
        ("frozenlake-v1", {}, "did you mean FrozenLake-v1"),
        ("FrozenLake-v99", {}, "'FrozenLake-v99'; did you mean FrozenLake-v1 or FrozenLake8x8-v1?"),
        ("ALE/Freeway-v5", {}, "an id of another package is written MODULE:ID"),
        ("gymnasium:FrozenLak-v1", {}, "the module gymnasium registers no environment 'FrozenLak-v1'"),
        ("", {}, "unknown environment"),
        ("no_such_module:Env-v0", {}, "no_such_module"),
        ("object:FrozenLake-v1", {}, "pass the object again"),
        ("two-room", {"slip": 2}, "env_args: slip: must be a number"),
        ("chain", {"slip": None}, "env_args: slip of chain must have a value, got None"),
        ("two-room", {"size": 2}, "two-room has no argument 'size'; it accepts eta, slip"),
        ("mixture-signed", {"signed": False}, "has no argument 'signed'"),
        ("grid-file", {}, "grid-file needs path"),
        ("FrozenLake-v1", {"size": 2}, "FrozenLake-v1 has no argument 'size'; it accepts desc, map_name"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "env_args: FrozenLake-v1 cannot be made with map_name=9x9"),
        ("Pendulum-v1", {}, "actions of type Box; they must be Discrete"),
        ("CartPole-v1", {}, "continuous observations"),
    ],
)
def test_bad_input_gives_one_line_error(env: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        registry.make_single_env(env, arguments, None, None)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_bad_input() -> None:
    with pytest.raises(InputError, match="key=value"):
        parse_key_value("slip")
    with pytest.raises(InputError, match="max_states"):
        registry.make_single_env("two-room", {}, None, 1)
    with pytest.raises(InputError, match="start_seed"):
        registry.make_single_env("two-room", {}, -1, None)
    with pytest.raises(InputError, match="object"):
        registry.make_single_env(gymnasium.make("FrozenLake-v1"), {"map_name": "8x8"}, None, None)
    with pytest.raises(InputError, match="must be a name"):
        registry.make_single_env(3, {}, None, None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the class TaxiEnv; pass an object: TaxiEnv\(...\)"):
        registry.make_single_env(TaxiEnv, {}, None, None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got SimpleNamespace: it has reset and step"):
        registry.make_single_env(SimpleNamespace(reset=None, step=None), {}, None, None)  # type: ignore[arg-type]


def test_missing_minigrid_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minigrid", None)
    with pytest.raises(InputError, match=r"needs minigrid: .*\[minigrid\]"):
        registry.make_single_env("MiniGrid-Empty-5x5-v0", {}, None, None)


@pytest.mark.parametrize("old", ["Taxi-v3", "CliffWalking-v0", "FrozenLake"])
def test_old_ids_give_the_newest_version_with_a_warning(old: str) -> None:
    env, name = registry.make_single_env(old, {}, None, None)
    assert name == old
    assert isinstance(env, ModelSimulator)
    assert len(env.warnings) == 1
    assert old in env.warnings[0]


def test_frozen_lake_model_equals_its_table() -> None:
    mdp = registry.make_exact_model("FrozenLake-v1", {}, None)
    assert mdp is not None
    assert np.flatnonzero(mdp.terminal).tolist() == [5, 7, 11, 12, 15]
    successors, p = mdp.row(0, 0)
    assert dict(zip(successors.tolist(), p.tolist(), strict=True)) == pytest.approx({0: 2 / 3, 4: 1 / 3})
    assert mdp.layout is not None
    assert mdp.layout.shape == (4, 4)
    assert mdp.labels[5] == "(1, 1) hole"
    small = registry.make_exact_model("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}, None)
    assert small is not None
    assert small.n_states == 64
    assert len(small.row(0, 2)[0]) == 1


def test_taxi_start_is_random_or_fixed_by_the_seed() -> None:
    anywhere, fixed = registry.make_exact_model("Taxi-v4", {}, None), registry.make_exact_model("Taxi-v4", {}, 0)
    assert anywhere is not None
    assert fixed is not None
    assert (anywhere.n_states, anywhere.start, len(anywhere.row(500, 3)[0])) == (501, 500, 300)
    assert fixed.n_states == 500
    assert fixed.start == gymnasium.make("Taxi-v4").reset(seed=0)[0]
    assert fixed.terminal.sum() == 4
    assert fixed.labels[fixed.start].startswith("taxi (")


def test_fickle_taxi_has_no_exact_model() -> None:
    env, _ = registry.make_single_env("Taxi-v4", {"fickle_passenger": True}, 0, None)
    assert isinstance(env, GymAdapter)


def test_environment_objects_are_stepped_and_keep_their_state_numbers() -> None:
    env = gymnasium.make("FrozenLake-v1")
    adapter, name = registry.make_single_env(env, {}, None, None)
    assert isinstance(adapter, GymAdapter)
    assert name == "object:FrozenLake-v1"
    assert (adapter.start, adapter.state_bound) == (0, 16)
    assert adapter.layout is not None
    assert registry.make_exact_model(env, {}, None) is not None
    again, same = registry.make_single_env(adapter, {}, None, None)
    assert again is adapter
    assert same == name


def test_description_lists_every_environment_with_its_arguments() -> None:
    rows = {row.name: row for row in registry.list_environments()}
    assert set(registry.MODEL_BUILDERS) < set(rows)
    assert rows["two-room"].arguments == {"eta": 0.001, "slip": 0.1}
    assert rows["grid-file"].arguments["path"] == "required"
    assert all(row.description for row in rows.values())
