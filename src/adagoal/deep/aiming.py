"""How the chosen goal is told to an environment.

An environment that ends its episodes at the goal must know which goal that is. Three ways, in this order:

    the hook          ``train(env, set_goal=function)`` calls ``function(env, goal)`` after every reset
    a method          ``set_goal(goal)`` of the environment or of a wrapper
    known classes     Fetch and Hand (``goal``), PointMaze and AntMaze (``goal``, and the marker), panda-gym
                      (``task.goal``, and the marker); any other that keeps as many numbers as ``goal``

Whether it worked is not taken on trust: :mod:`adagoal.deep.measure` sets a goal and looks at ``desired_goal`` after
the next step. Where it did not, an end of the episode at the environment's own goal is passed over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from adagoal.deep.families import MAZE_CLASS, PANDA_CLASS, inherits_method, is_instance_of
from adagoal.deep.vectors import flatten_numbers, unflatten_like

SetGoalFunction = Callable[[Any, Any], None]
"""``set_goal(env, goal)``: a function of the user's; the goal has the form of ``desired_goal``."""
GoalSetter = Callable[[Any], None]


def find_goal_setter(env: Any, hook: SetGoalFunction | None) -> GoalSetter | None:
    """A function that tells ``env`` its goal; None where no way is known."""
    core = env.unwrapped
    if hook is not None:
        return lambda goal: hook(env, goal)
    if env.has_wrapper_attr("set_goal"):
        own: GoalSetter = env.get_wrapper_attr("set_goal")
        return own
    if is_instance_of(env, MAZE_CLASS):
        return lambda goal: _set_maze_goal(core, goal)
    if is_instance_of(env, PANDA_CLASS):
        return lambda goal: _set_panda_goal(core, goal)
    if hasattr(core, "goal"):
        return lambda goal: _set_goal_attribute(core, goal)
    return None


def _set_goal_attribute(core: Any, goal: Any) -> None:
    """Replace an attribute ``goal`` that holds as many numbers; anything else of this name is left alone."""
    with contextlib.suppress(TypeError, ValueError, AttributeError):  # no numbers, or a property that cannot be set
        now, chosen = flatten_numbers(core.goal), flatten_numbers(goal)
        if now.size == chosen.size and np.isfinite(now).all():
            core.goal = unflatten_like(core.goal, chosen)


@contextlib.contextmanager
def draw_start_for_goal(env: Any, goal: Any) -> Iterator[None]:
    """Let resets in this block draw the start as the environment draws it for ``goal``.

    A maze puts its start into another cell than its own goal. Other environments draw the two independently of each
    other, as far as we know, and a maze without a cell apart from the goal has no choice.
    """
    core = env.unwrapped
    if not inherits_method(env, MAZE_CLASS, "generate_reset_pos"):
        yield
        return
    away = np.linalg.norm(np.asarray(core.maze.unique_reset_locations) - goal, axis=1)

    def generate_reset_pos() -> Any:
        if (away > 0.5 * core.maze.maze_size_scaling).any():  # or else the loop of the original would never end
            core.goal = np.array(goal, np.float64)
        return type(core).generate_reset_pos(core)

    core.generate_reset_pos = generate_reset_pos
    try:
        yield
    finally:
        del core.generate_reset_pos


def _set_maze_goal(core: Any, goal: Any) -> None:
    core.goal = goal
    core.update_target_site_pos()


def _set_panda_goal(core: Any, goal: Any) -> None:
    core.task.goal = goal
    markers = {3: ("target",), 6: ("target1", "target2")}.get(np.size(goal), ())
    for name, place in zip(markers, np.reshape(goal, (-1, 3)) if markers else (), strict=True):
        with contextlib.suppress(AttributeError, KeyError):  # a task without markers, or of another simulator
            core.sim.set_base_pose(name, place, np.array([0.0, 0.0, 0.0, 1.0]))
