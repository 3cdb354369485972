"""How the chosen goal is told to an environment.

An environment that ends its episodes at the goal must know which goal that is. Three ways, in this order:

    the hook          ``train(env, set_goal=function)`` calls ``function(env, goal)`` after every reset
    a method          ``set_goal(goal)`` of the environment or of a wrapper
    known families    Fetch and Hand (``goal``), PointMaze and AntMaze (``goal``, and the marker), panda-gym
                      (``task.goal``, and the marker), and whatever else keeps its goal as ``goal``

Whether it worked is not taken on trust: :mod:`adagoal.deep.measure` sets a goal and looks at ``desired_goal`` after
the next step. Where it did not, an end of the episode at the environment's own goal is passed over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

Hook = Callable[[Any, Any], None]
"""``set_goal(env, goal)``: a function of the user's; the goal has the form of ``desired_goal``."""
Setter = Callable[[Any], None]


def setter(env: Any, hook: Hook | None) -> Setter | None:
    """A function that tells ``env`` its goal; None where no way is known."""
    core = env.unwrapped
    if hook is not None:
        return lambda goal: hook(env, goal)
    if env.has_wrapper_attr("set_goal"):
        own: Setter = env.get_wrapper_attr("set_goal")
        return own
    if hasattr(core, "update_target_site_pos"):
        return lambda goal: _maze(core, goal)
    if hasattr(getattr(core, "task", None), "goal"):
        return lambda goal: _panda(core, goal)
    if hasattr(core, "goal"):
        return lambda goal: setattr(core, "goal", goal)
    return None


def _maze(core: Any, goal: Any) -> None:
    core.goal = goal
    core.update_target_site_pos()


def _panda(core: Any, goal: Any) -> None:
    core.task.goal = goal
    markers = {3: ("target",), 6: ("target1", "target2")}.get(np.size(goal), ())
    for name, place in zip(markers, np.reshape(goal, (-1, 3)) if markers else (), strict=True):
        with contextlib.suppress(AttributeError, KeyError):  # a task without markers, or of another simulator
            core.sim.set_base_pose(name, place, np.array([0.0, 0.0, 0.0, 1.0]))
