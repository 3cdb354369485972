"""The documented Stable-Baselines3 examples run, and have the settings of measured runs."""

from __future__ import annotations

import importlib.util
import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv
from test_sb3_goal_rules import point_mass, success

ROOT = Path(__file__).parents[2]
SMALLER = {
    "n_envs=16": "n_envs=2",
    "learning_starts=1600": "learning_starts=100",
    "batch_size=1024": "batch_size=32",
    "learn(120_000": "learn(300",
}
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the environments


def example(page: str, algorithm: str) -> str:
    """Return the code of the example that creates this kind of model."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    (code,) = (block for block in blocks if f"model = {algorithm}(" in block)
    return code


def executed(code: str) -> Any:
    """Run the code and return its model."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    exec(code, found)
    return found["model"]


def load_benchmark(name: str) -> Any:
    """Load a program of the folder benchmarks as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def test_small_example_learns() -> None:
    assert success(executed(example("docs/sb3.md", "TD3"))) >= 0.8


def test_large_example_runs() -> None:
    code = example("docs/sb3.md", "TQC")
    for old, new in SMALLER.items():
        assert old in code
        code = code.replace(old, new)
    model = executed(code)
    assert model.num_timesteps >= 300
    assert model._n_updates > 0


def test_settings_of_the_large_example_equal_the_measured_runs() -> None:
    data = json.loads((ROOT / "docs" / "data" / "sb3-push-tqc.json").read_text())
    shown = executed(example("docs/sb3.md", "TQC").split("model.learn(")[0])
    ran = load_benchmark("sb3_push").learner(
        Namespace(**data["runs"][0] | {"steps": 10_000}), DummyVecEnv([point_mass])
    )
    for setting in (
        *("gamma", "tau", "learning_rate", "batch_size", "learning_starts", "train_freq", "gradient_steps"),
        *("ent_coef", "top_quantiles_to_drop_per_net"),
    ):
        assert getattr(shown, setting) == getattr(ran, setting), setting
    for setting in ("n_sampled_goal", "goal_selection_strategy"):
        assert getattr(shown.replay_buffer, setting) == getattr(ran.replay_buffer, setting), setting
    assert shown.policy_kwargs["net_arch"] == ran.policy_kwargs["net_arch"]
    assert shown.policy_kwargs["n_critics"] == ran.policy_kwargs["n_critics"]


def test_settings_of_the_small_example_equal_the_measured_runs() -> None:
    settings = load_benchmark("sb3_reach").SETTINGS
    shown = executed(example("docs/sb3.md", "TD3").split("model.learn(")[0])
    for name, value in settings.items():
        found = getattr(shown, name)
        assert getattr(found, "frequency", found) == value, name
