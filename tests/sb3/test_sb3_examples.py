"""The examples of the documents run as they stand, the large one with fewer steps, and their settings were measured."""

from __future__ import annotations

import importlib.util
import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv
from test_sb3_goal_rules import point_mass, success

from adagoal.sb3 import NormalisedFeatures

ROOT = Path(__file__).parents[2]
SMALLER = {
    "n_envs=16": "n_envs=2",
    "learning_starts=1600": "learning_starts=100",
    "batch_size=1024": "batch_size=32",
    "gradient_steps=400": "gradient_steps=2",
    "learn(144_000": "learn(300",
}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the environments


def example(page: str, algorithm: str) -> str:
    """The code of the example in which a model of this kind is made."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    (code,) = (block for block in blocks if f"model = {algorithm}(" in block)
    return code


def executed(code: str) -> Any:
    """The model that is left when the code has run."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    exec(code, found)
    return found["model"]


def measured(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A file of runs, and the first of them."""
    data = json.loads((ROOT / "docs" / "data" / name).read_text())
    return data, data["runs"][0]


def test_the_small_example_learns() -> None:
    assert success(executed(example("docs/sb3.md", "TD3"))) >= 0.8


@pytest.mark.parametrize("page", ["docs/sb3.md"])
def test_an_example_runs(page: str) -> None:
    code = example(page, "EnsembleTD3")
    for old, new in SMALLER.items():
        assert old in code
        code = code.replace(old, new)
    model = executed(code)
    assert model.num_timesteps >= 300
    assert model._n_updates > 0


@pytest.mark.parametrize("page", ["docs/sb3.md"])
@pytest.mark.parametrize("name", ["sb3-push-ensemble.json", "sb3-push-ensemble-120k.json"])
def test_the_settings_of_an_example_are_those_of_the_measured_runs(page: str, name: str) -> None:
    spec = importlib.util.spec_from_file_location("sb3_push", ROOT / "benchmarks" / "sb3_push.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    data, run = measured(name)
    shown = executed(example(page, "EnsembleTD3").split("model.learn(")[0])
    ran = program.learner(Namespace(**run | data["fixed"] | {"steps": 10_000}), DummyVecEnv([point_mass]))
    for setting in (
        *("gamma", "tau", "learning_rate", "batch_size", "learning_starts", "train_freq", "gradient_steps"),
        *("action_penalty", "random_actions"),
    ):
        assert getattr(shown, setting) == getattr(ran, setting), setting
    for setting in ("n_sampled_goal", "goal_selection_strategy"):
        assert getattr(shown.replay_buffer, setting) == getattr(ran.replay_buffer, setting), setting
    assert shown.n_envs == program.ENVIRONMENTS
    assert shown.action_noise._sigma[0] == ran.action_noise._sigma[0]
    assert [w.shape[2] for w in shown.critic.weights] == [w.shape[2] for w in ran.critic.weights]


def test_the_settings_of_tqc_are_those_of_the_measured_runs() -> None:
    call = example("docs/sb3.md", "TQC").removeprefix("model = ")
    names = {"HerReplayBuffer": HerReplayBuffer, "NormalisedFeatures": NormalisedFeatures, "env": None}
    shown = eval(call, names | {"TQC": lambda *_, **given: given})
    _, run = measured("sb3-push-tqc.json")
    keys = {"gamma": "gamma", "tau": "tau", "learning_rate": "rate", "batch_size": "batch", "gradient_steps": "updates"}
    assert {name: shown[name] for name in keys} == {name: run[key] for name, key in keys.items()}
    assert shown["policy_kwargs"]["n_critics"] == run["critics"]
    assert shown["policy_kwargs"]["net_arch"] == [run["width"]] * 3
