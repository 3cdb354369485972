"""Environments of other packages that adagoal knows, recognised by their classes.

Any environment may have an attribute ``maze``, ``task`` or ``initial_gripper_xpos``, so attributes decide nothing here.
Classes are compared by name: their packages may not be installed, and are slow to import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from adagoal.core.types import Floats

FETCH_CLASS = "gymnasium_robotics.envs.fetch.fetch_env.MujocoFetchEnv"
MAZE_CLASS = "gymnasium_robotics.envs.maze.maze_v4.MazeEnv"
PANDA_CLASS = "panda_gym.envs.core.RobotTaskEnv"


def is_instance_of(env: Any, family: str) -> bool:
    """Whether the unwrapped environment is an instance of the class ``family``."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == family for kind in type(env.unwrapped).__mro__)


def inherits_method(env: Any, family: str, method: str) -> bool:
    """Whether the environment is of the family and has its ``method``, not one of a subclass in another package."""
    package = family.partition(".")[0] + "."
    return is_instance_of(env, family) and getattr(type(env.unwrapped), method).__module__.startswith(package)


# Fetch environments, stepped without the name look-ups: same numbers, bit for bit, 1.4 times the speed.
#
# ``gymnasium_robotics`` spends 40% of a Fetch step on resolving joint names and re-building arrays. This is
# its ``step`` (``fetch_env.py`` and ``utils/mujoco_utils.py``, version 1.4) with the ids looked up once; goal
# and reward are left out, since the goal lives outside the environment here.


FetchStep = Callable[[Floats], tuple[Floats, Floats]]

TILT = np.array([1.0, 0.0, 1.0, 0.0])
"""What the environment adds to the mocap quaternion at every step."""
SINGULAR = 4 * np.finfo(np.float64).eps
"""Below this cosine of the second Euler angle the other two are not unique."""


def is_unmodified_fetch(env: Any) -> bool:
    """Whether :func:`make_fetch_step` knows this environment: one of Gymnasium-Robotics, in no wrapper but its own."""
    while isinstance(env, TimeLimit | OrderEnforcing | PassiveEnvChecker):
        env = env.env
    return is_instance_of(env, FETCH_CLASS) and type(env).__module__.startswith("gymnasium_robotics.envs.fetch.")


def make_fetch_step(core: Any) -> FetchStep:
    """``step(action [4]) -> (observation, achieved goal)`` of an unwrapped Fetch environment."""
    import mujoco

    model, data = core.model, core.data

    def number(kind: Any, name: str) -> int:
        return int(mujoco.mj_name2id(model, kind, name))

    grip = number(mujoco.mjtObj.mjOBJ_SITE, "robot0:grip")
    thing = number(mujoco.mjtObj.mjOBJ_SITE, "object0") if core.has_object else -1
    fingers = [number(mujoco.mjtObj.mjOBJ_JOINT, f"robot0:{side}_gripper_finger_joint") for side in "lr"]
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
    jacobian_p, jacobian_r = np.zeros((3, model.nv)), np.zeros((3, model.nv))

    def step(action: Floats) -> tuple[Floats, Floats]:
        action = np.clip(action, low, high)
        squeeze = 0.0 if core.block_gripper else action[3]
        for i, direct, at in actuators:
            data.ctrl[i] = squeeze if direct else data.qpos[at] + squeeze
        for mocap, body in welds:
            data.mocap_pos[mocap] = data.xpos[body]
            data.mocap_quat[mocap] = data.xquat[body]
        data.mocap_pos[:] = data.mocap_pos + action[:3] * action.dtype.type(0.05)
        data.mocap_quat[:] = data.mocap_quat + TILT
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
        if thing < 0:
            return np.concatenate([grip_pos, state, grip_velp, speed]), grip_pos
        pos = data.site_xpos[thing].copy()
        mujoco.mj_jacSite(model, data, jacobian_p, jacobian_r, thing)
        velp = (jacobian_p @ qvel) * dt - grip_velp
        velr = (jacobian_r @ qvel) * dt
        euler = euler_angles(*data.site_xmat[thing])
        return np.concatenate([grip_pos, pos, pos - grip_pos, state, euler, velp, velr, grip_velp, speed]), pos

    return step


def euler_angles(
    r00: Any, r01: Any, r02: Any, r10: Any, r11: Any, r12: Any, r20: Any, r21: Any, r22: Any
) -> tuple[Any, ...]:
    """Euler angles of a rotation matrix: ``rotations.mat2euler`` for one matrix, with the same NumPy functions."""
    cosine = np.sqrt(r22 * r22 + r12 * r12)
    middle = -np.arctan2(-r02, cosine)
    if cosine > SINGULAR:
        return -np.arctan2(r12, r22), middle, -np.arctan2(r01, r00)
    return 0.0, middle, -np.arctan2(-r10, r11)
