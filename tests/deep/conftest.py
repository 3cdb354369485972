"""Skip the deep tests without the extra, share compiled programs, and provide one small training run."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import pytest

EXTRA = ("jax", "optax", "mujoco", "gymnasium_robotics")
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in EXTRA) else ["test_*"]

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "adagoal-test-programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
sys.path.append(str(Path(__file__).parents[1]))  # damaged_folders is there


@pytest.fixture(autouse=True)
def no_video(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Render videos only in the tests of the page, because each takes seconds."""
    if request.module.__name__ != "test_training_page":
        monkeypatch.setattr("adagoal.report.training_page.write_video_strip", lambda record, env: None)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished training run with two checkpoints; tests copy it and do not change it."""
    from small_training import CONFIG

    from adagoal import train

    folder = tmp_path_factory.mktemp("finished") / "run"
    train([CONFIG], out=folder, workers=1, checkpoint_every=1)
    return folder
