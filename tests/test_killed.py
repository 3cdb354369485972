"""A run that is killed at any moment ends as if it had not been: see :mod:`killing`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KILLING = Path(__file__).parent / "killing.py"


def kill(seed: int, kills: int) -> str:
    done = subprocess.run([sys.executable, str(KILLING), str(seed), str(kills)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_runs_end_as_if_they_had_not_been() -> None:
    assert "0 differences" in kill(3, 8)


@pytest.mark.slow
def test_200_killed_runs_end_as_if_they_had_not_been() -> None:
    told = kill(0, 200)
    assert "200 kills" in told
    assert "0 differences" in told
    assert all(case in told for case in ("upgrade-auto", "on-the-fly", "gosprl", "likelihood-auto"))
