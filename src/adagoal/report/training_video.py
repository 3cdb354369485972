"""The video on the page of training runs: a strip of frames of its policy, rendered without a display.

A separate process renders the strip, because a broken renderer can end its process. Then the page has no video.
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
from adagoal.deep import env_inspection, goal_envs
from adagoal.deep.goal_envs import flatten_numbers, unflatten_like
from adagoal.runs import train_result as files
from adagoal.runs.run_folder import read_saved_run

VIDEO_STRIP_FILE = "strip.png"
N_FRAMES = 12
"""Frames of the video. More would make the page larger without showing more."""


def write_video_strip(record: files.TrainingRecord, env: str | None) -> Path | None:
    """Render ``FOLDER/strip.png``; return None if no renderer works or the environment's code may not be run."""
    # The child gets our sys.path: a script may have added the folder of its environment.
    code = (
        "import sys; sys.path[:] = sys.argv[2:]; "
        "from adagoal.report import training_video; training_video.render_strip_of_folder()"
    )
    # EGL renders without a display. A choice of the user wins, because it comes later.
    environment = {"MUJOCO_GL": "egl", **os.environ, **safe_imports.safe_path_variables()}
    path = record.path / VIDEO_STRIP_FILE
    # An old strip would show an earlier policy.
    path.unlink(missing_ok=True)
    try:
        record.env_source(env, trust=False)
    except InputError:
        return None
    try:
        subprocess.run(
            [sys.executable, "-c", code, str(record.path), *sys.path],
            env=environment,
            capture_output=True,
            timeout=120,  # seconds; some renderers hang without a display
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return path if path.is_file() else None


def render_frames(folder: Path) -> NDArray[np.uint8]:
    """Play one episode at a distant test goal and return its frames ``[N_FRAMES, height, width, 3]``."""
    config = read_saved_run(folder, files.read_training_record).configs[0]
    policy = read_saved_run(folder, lambda saved: files.read_policy(saved, files.read_training_record(saved), 0))
    source = goal_envs.EnvSource(policy.env)
    env = source.make_env(render_mode="rgb_array")
    horizon = env_inspection.measure_dimensions(env, source, config.horizon).horizon
    # Fixed seeds: the same policy is shown on the same goal.
    goals = env_inspection.make_goal_sampler(env, "test_goals", config.test_goals)(np.random.default_rng(1), 32)
    observation, _ = env.reset(seed=1)
    goal = goals[np.argmax(np.linalg.norm(goals - flatten_numbers(observation["achieved_goal"]), axis=1))]
    set_goal = source.find_goal_setter(env)
    if set_goal is not None:
        set_goal(unflatten_like(observation["desired_goal"], goal))
    shown_steps = np.linspace(0, horizon, N_FRAMES).astype(int).tolist()
    frames = {0: env.render()}
    ended = False
    for t in range(1, horizon + 1):
        if not ended:
            action = policy(observation, goal).astype(env.action_space.dtype)
            observation, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
        # After the end of the episode the frames repeat its last state.
        if t in shown_steps:
            frames[t] = env.render()
    return np.stack([frames[t] for t in shown_steps])


def render_strip_of_folder() -> None:
    """Write the strip of the folder in ``sys.argv[1]``: the main function of the child process."""
    import matplotlib.image

    folder = Path(sys.argv[1])
    frames = render_frames(folder)
    every = max(1, min(frames.shape[1:3]) // 240)  # keep at least 240 pixels per side
    strip = np.concatenate(list(frames[:, ::every, ::every]), 1)
    picture = io.BytesIO()
    matplotlib.image.imsave(picture, strip, format="png")
    write_atomically(folder / VIDEO_STRIP_FILE, lambda file: file.write(picture.getvalue()))
