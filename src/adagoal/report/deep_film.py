"""A strip of frames of a trained policy, rendered without a display.

Runs as a process of its own, so that a machine without a working renderer loses the strip and nothing else.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adagoal.core import isolation
from adagoal.core.errors import InputError
from adagoal.core.files import replace
from adagoal.deep import envs, goalspace, measure
from adagoal.deep.vectors import flat, like
from adagoal.runs import training_files as files
from adagoal.runs.saved import read

CHILD = "import sys; sys.path[:] = sys.argv[2:]; from adagoal.report import deep_film; deep_film.main()"
FRAMES = 12
SIDE = 240
"""Pixels of a picture on the page, at least; larger ones lose every second pixel, or more."""


def write(about: files.Record, env: str | None, trust: bool) -> Path | None:
    """Render ``FOLDER/strip.png`` in a child process; None where no renderer works, or the code may not be run."""
    environment = {"MUJOCO_GL": "egl", **os.environ, **isolation.environment()}
    path = about.path / "strip.png"
    path.unlink(missing_ok=True)
    try:
        about.source(env, trust)
    except InputError:
        return None
    try:
        subprocess.run(
            [sys.executable, "-c", CHILD, str(about.path), *sys.path],
            env=environment,
            capture_output=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return path if path.is_file() else None


def frames(folder: Path) -> NDArray[np.uint8]:
    """Pictures ``[FRAMES, height, width, 3]`` of one episode at a far test goal; makes the folder's environment."""
    trained = read(folder, files.record).configs[0]
    policy = files.load(folder)
    source = envs.Source(policy.env)
    env = source.make(render_mode="rgb_array")
    horizon = measure.dimensions(env, source, trained.horizon).horizon
    goals = goalspace.goal_space(env, "test_goals", trained.test_goals)(np.random.default_rng(1), 32)
    seen, _ = env.reset(seed=1)
    goal = goals[np.argmax(np.linalg.norm(goals - flat(seen["achieved_goal"]), axis=1))]
    tell = source.setter(env)
    if tell is not None:
        tell(like(seen["desired_goal"], goal))
    shown = np.linspace(0, horizon, FRAMES).astype(int).tolist()
    pictures = {0: env.render()}
    ended = False
    for t in range(1, horizon + 1):
        if not ended:
            seen, _, terminated, truncated, _ = env.step(policy(seen, goal).astype(env.action_space.dtype))
            ended = terminated or truncated
        if t in shown:
            pictures[t] = env.render()
    return np.stack([pictures[t] for t in shown])


def main() -> None:
    """Write the strip of a folder."""
    import matplotlib.image

    folder = Path(sys.argv[1])
    pictures = frames(folder)
    every = max(1, min(pictures.shape[1:3]) // SIDE)
    pictures = pictures[:, ::every, ::every]
    strip = np.concatenate(list(pictures), 1)
    picture = io.BytesIO()
    matplotlib.image.imsave(picture, strip, format="png")
    replace(folder / "strip.png", lambda file: file.write(picture.getvalue()))
