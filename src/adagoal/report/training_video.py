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

from adagoal.core import safe_imports
from adagoal.core.errors import InputError
from adagoal.core.file_io import write_atomically
from adagoal.deep import env_inspection, goal_envs, goal_samplers
from adagoal.deep.goal_envs import flatten_numbers, unflatten_like
from adagoal.runs import training_files as files
from adagoal.runs.folder_reader import read_saved_run

CHILD_CODE = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from adagoal.report import training_video; training_video.render_strip_of_folder()"
)
N_FRAMES = 12
MIN_FRAME_PIXELS = 240
"""Pixels of a picture on the page, at least; larger ones lose every second pixel, or more."""


def write_video_strip(about: files.TrainingRecord, env: str | None, trust: bool) -> Path | None:
    """Render ``FOLDER/strip.png`` in a child process; None where no renderer works, or the code may not be run."""
    environment = {"MUJOCO_GL": "egl", **os.environ, **safe_imports.safe_path_variables()}
    path = about.path / "strip.png"
    path.unlink(missing_ok=True)
    try:
        about.env_source(env, trust)
    except InputError:
        return None
    try:
        subprocess.run(
            [sys.executable, "-c", CHILD_CODE, str(about.path), *sys.path],
            env=environment,
            capture_output=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return path if path.is_file() else None


def render_frames(folder: Path) -> NDArray[np.uint8]:
    """Pictures ``[FRAMES, height, width, 3]`` of one episode at a far test goal; makes the folder's environment."""
    trained = read_saved_run(folder, files.read_training_record).configs[0]
    policy = read_saved_run(folder, lambda saved: files.read_policy(saved, files.read_training_record(saved), 0))
    source = goal_envs.EnvSource(policy.env)
    env = source.make_env(render_mode="rgb_array")
    horizon = env_inspection.measure_dimensions(env, source, trained.horizon).horizon
    goals = goal_samplers.make_goal_sampler(env, "test_goals", trained.test_goals)(np.random.default_rng(1), 32)
    seen, _ = env.reset(seed=1)
    goal = goals[np.argmax(np.linalg.norm(goals - flatten_numbers(seen["achieved_goal"]), axis=1))]
    tell = source.find_goal_setter(env)
    if tell is not None:
        tell(unflatten_like(seen["desired_goal"], goal))
    shown = np.linspace(0, horizon, N_FRAMES).astype(int).tolist()
    pictures = {0: env.render()}
    ended = False
    for t in range(1, horizon + 1):
        if not ended:
            seen, _, terminated, truncated, _ = env.step(policy(seen, goal).astype(env.action_space.dtype))
            ended = terminated or truncated
        if t in shown:
            pictures[t] = env.render()
    return np.stack([pictures[t] for t in shown])


def render_strip_of_folder() -> None:
    """Write the strip of a folder."""
    import matplotlib.image

    folder = Path(sys.argv[1])
    pictures = render_frames(folder)
    every = max(1, min(pictures.shape[1:3]) // MIN_FRAME_PIXELS)
    pictures = pictures[:, ::every, ::every]
    strip = np.concatenate(list(pictures), 1)
    picture = io.BytesIO()
    matplotlib.image.imsave(picture, strip, format="png")
    write_atomically(folder / "strip.png", lambda file: file.write(picture.getvalue()))
