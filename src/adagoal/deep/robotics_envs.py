"""Special cases for Fetch, the mazes of Gymnasium-Robotics and panda-gym: recognise classes, set goals, faster steps.

Classes decide, not attributes: any environment may have an attribute ``maze``, ``task`` or ``initial_gripper_xpos``.
Classes are compared by name, because their packages may not be installed and are slow to import.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from adagoal.core.array_types import Floats

FetchStep = Callable[[Floats], tuple[Floats, Floats]]


class KnownClass(StrEnum):
    """Full names of base classes."""

    FETCH = "gymnasium_robotics.envs.fetch.fetch_env.MujocoFetchEnv"
    MAZE = "gymnasium_robotics.envs.maze.maze_v4.MazeEnv"
    PANDA = "panda_gym.envs.core.RobotTaskEnv"


def is_instance_of(env: Any, class_name: str) -> bool:
    """Whether the unwrapped environment is an instance of the class with this full name."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == class_name for kind in type(env.unwrapped).__mro__)


def inherits_method(env: Any, class_name: str, method: str) -> bool:
    """Whether the environment is of this class and has its ``method``, not one of a subclass in another package."""
    # a subclass that draws its goals or starts in another way must not be sampled with the formulas of its parent
    package = class_name.partition(".")[0] + "."
    return is_instance_of(env, class_name) and getattr(type(env.unwrapped), method).__module__.startswith(package)


def set_maze_goal(core: Any, goal: Any) -> None:
    """Set the goal of an unwrapped PointMaze or AntMaze, and move its marker."""
    core.goal = goal
    core.update_target_site_pos()


def set_panda_goal(core: Any, goal: Any) -> None:
    """Set the goal of an unwrapped environment of panda-gym, and move its markers."""
    core.task.goal = goal
    markers = {3: ("target",), 6: ("target1", "target2")}.get(np.size(goal), ())
    for name, position in zip(markers, np.reshape(goal, (-1, 3)) if markers else (), strict=True):
        # a task without markers, or of another simulator; the picture is wrong then, and nothing else
        with contextlib.suppress(AttributeError, KeyError):
            core.sim.set_base_pose(name, position, np.array([0.0, 0.0, 0.0, 1.0]))


@contextlib.contextmanager
def draw_start_for_goal(env: Any, goal: Any) -> Iterator[None]:
    """Let resets in this block draw the start as the environment draws it for ``goal``.

    A maze starts in another cell than that of its own goal, so the distribution of starts depends on the goal. Other
    environments, as far as we know, draw start and goal independently.
    """
    core = env.unwrapped
    if not inherits_method(env, KnownClass.MAZE, "generate_reset_pos"):
        yield
        return
    distances = np.linalg.norm(np.asarray(core.maze.unique_reset_locations) - goal, axis=1)

    def generate_reset_pos() -> Any:
        # the original draws until the start is this far from the goal: without such a cell it would never end
        if (distances > 0.5 * core.maze.maze_size_scaling).any():
            core.goal = np.array(goal, np.float64)
        return type(core).generate_reset_pos(core)

    core.generate_reset_pos = generate_reset_pos
    try:
        yield
    finally:
        del core.generate_reset_pos


def is_unmodified_fetch(env: Any) -> bool:
    """Whether :func:`make_fetch_step` applies: a Fetch environment of Gymnasium-Robotics with its usual wrappers."""
    while isinstance(env, TimeLimit | OrderEnforcing | PassiveEnvChecker):
        env = env.env
    return is_instance_of(env, KnownClass.FETCH) and type(env).__module__.startswith("gymnasium_robotics.envs.fetch.")


def make_fetch_step(core: Any) -> FetchStep:
    """``step(action [4]) -> (observation, achieved goal)`` of an unwrapped Fetch environment, bit for bit its own.

    The ``step`` of ``gymnasium_robotics`` 1.4 (``fetch_env.py`` and ``utils/mujoco_utils.py``) resolves joint names and
    rebuilds arrays each time. This copy looks the ids up once, and leaves out goal and reward, which live outside of
    the environment here. Measured in November 2026 on one core: 1,280 instead of 860 steps/s for FetchPush, and 1,490
    instead of 1,020 for FetchReach. Environment steps are the bottleneck on machines with a GPU, so it is worth a copy.
    ``tests/deep/test_robotics_envs.py`` compares the two.
    """
    import mujoco

    # ids and addresses never change, and mujoco updates the arrays of `data` in place, so both are looked up once
    model, data = core.model, core.data

    def find_id(kind: Any, name: str) -> int:
        return int(mujoco.mj_name2id(model, kind, name))

    grip = find_id(mujoco.mjtObj.mjOBJ_SITE, "robot0:grip")
    object_site = find_id(mujoco.mjtObj.mjOBJ_SITE, "object0") if core.has_object else -1
    fingers = [find_id(mujoco.mjtObj.mjOBJ_JOINT, f"robot0:{side}_gripper_finger_joint") for side in "lr"]
    robot = [j for j in range(model.njnt) if (model.joint(j).name or "").startswith("robot")][-2:]
    qpos_at = model.jnt_qposadr[robot].copy()
    qvel_at = model.jnt_dofadr[robot].copy()
    finger_at = model.jnt_qposadr[fingers].copy()
    welds = [
        (int(model.body_mocapid[b1]), int(b2))
        if model.body_mocapid[b1] != -1
        else (int(model.body_mocapid[b2]), int(b1))
        for kind, b1, b2 in zip(model.eq_type, model.eq_obj1id, model.eq_obj2id, strict=True)
        if kind == mujoco.mjtEq.mjEQ_WELD
    ]
    actuators = [
        (i, model.actuator_biastype[i] == 0, int(model.jnt_qposadr[model.actuator_trnid[i, 0]]))
        for i in range(model.nu)
    ]
    low, high = core.action_space.low, core.action_space.high
    dt = core.n_substeps * model.opt.timestep
    # added to the mocap quaternion at every step, as upstream does
    tilt = np.array([1.0, 0.0, 1.0, 0.0])
    jacobian_p, jacobian_r = np.zeros((3, model.nv)), np.zeros((3, model.nv))

    def step(action: Floats) -> tuple[Floats, Floats]:
        action = np.clip(action, low, high)
        squeeze = 0.0 if core.block_gripper else action[3]
        for i, direct, at in actuators:
            data.ctrl[i] = squeeze if direct else data.qpos[at] + squeeze
        for mocap, body in welds:
            data.mocap_pos[mocap] = data.xpos[body]
            data.mocap_quat[mocap] = data.xquat[body]
        # the factor has the type of the action: upstream multiplies in place, so it rounds in that type
        data.mocap_pos[:] = data.mocap_pos + action[:3] * action.dtype.type(0.05)
        data.mocap_quat[:] = data.mocap_quat + tilt
        mujoco.mj_step(model, data, nstep=core.n_substeps)
        if core.block_gripper:
            data.qpos[finger_at] = 0.0
            mujoco.mj_forward(model, data)
        return observe()

    def observe() -> tuple[Floats, Floats]:
        qvel = data.qvel
        grip_pos = data.site_xpos[grip].copy()
        mujoco.mj_jacSite(model, data, jacobian_p, None, grip)
        grip_velp = (jacobian_p @ qvel) * dt
        state, speed = data.qpos[qpos_at], qvel[qvel_at] * dt
        if object_site < 0:
            return np.concatenate([grip_pos, state, grip_velp, speed]), grip_pos
        pos = data.site_xpos[object_site].copy()
        mujoco.mj_jacSite(model, data, jacobian_p, jacobian_r, object_site)
        velp = (jacobian_p @ qvel) * dt - grip_velp
        velr = (jacobian_r @ qvel) * dt
        euler = euler_angles(data.site_xmat[object_site])
        return np.concatenate([grip_pos, pos, pos - grip_pos, state, euler, velp, velr, grip_velp, speed]), pos

    return step


def euler_angles(matrix: Floats) -> tuple[Any, ...]:
    """Euler angles of a rotation matrix ``[9]``: ``rotations.mat2euler`` for one matrix, with the same functions."""
    r00, r01, r02, r10, r11, r12, _, _, r22 = matrix
    cosine = np.sqrt(r22 * r22 + r12 * r12)
    middle = -np.arctan2(-r02, cosine)
    if cosine > 2.0**-50:  # 4 eps, as upstream; below it, in gimbal lock, the other two angles are not unique
        return -np.arctan2(r12, r22), middle, -np.arctan2(r01, r00)
    return 0.0, middle, -np.arctan2(-r10, r11)
