"""The door to Stable-Baselines3 is light, and says what is missing. Its own tests need PyTorch (tests/sb3)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

import adagoal.sb3
from adagoal.core.errors import InputError


def test_importing_the_door_and_the_wrapper_imports_no_torch() -> None:
    code = "import sys, adagoal.sb3; adagoal.sb3.ChosenGoal; assert not {'torch', 'jax', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_missing_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "stable_baselines3" else find(name))
    with pytest.raises(InputError, match=r"needs stable_baselines3: .*\[sb3\]"):
        _ = adagoal.sb3.ChooseGoals
    with pytest.raises(AttributeError):
        _ = adagoal.sb3.Nothing
