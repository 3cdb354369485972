"""Pytest fixtures ``reach`` and ``explored``: assert what a state machine can reach, and print the calls.

>>> def test_the_breaker_recovers(reach):
...     breaker = adagoal.machine(Breaker, ["success", "failure", "tick"], mode, deterministic=True)
...     reach(breaker, "HALF_OPEN", within=10)

pytest imports this module in every run, so it imports the rest of adagoal only when a fixture is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from adagoal.runs.result import Result

BUDGET = 1_000_000  # calls of a test without a budget of its own: seconds to minutes


@pytest.fixture
def reach() -> Callable[..., Result]:
    """The function :func:`assert_reachable`."""
    return assert_reachable


@pytest.fixture
def explored() -> Callable[..., Result]:
    """The function :func:`assert_explored`."""
    return assert_explored


def assert_reachable(machine: Any, goal: Any, within: float = 20, **arguments: Any) -> Result:
    """Fail unless a goal is certified to be reachable within a number of expected calls; print the calls.

    Parameters
    ----------
    machine: what :func:`adagoal.machine` returns, or any other environment of :func:`adagoal.explore`.
    goal: the key of a state, its label such as "crash:KeyError", or a predicate of keys.
    within: the radius L.
    arguments: further arguments of :func:`adagoal.explore`.
    """
    __tracebackhide__ = True
    from adagoal.core.errors import to_single_line
    from adagoal.envs.observation_keys import key_text

    label = getattr(goal, "__name__", "goal") if callable(goal) else goal
    label = label if isinstance(label, str) else to_single_line(key_text(label))
    result = _explore(machine, within, arguments, {label: goal} if callable(goal) else [label])
    if not result.goals:
        number = result.goal(label)
        known = result.certificates.get(number)
        near = difflib.get_close_matches(label, result.view.labels, n=3, cutoff=0.0)
        unknown = "it holds in no state" if callable(goal) else f"no state is called so, but {', '.join(near)}"
        reason = f"every way takes at least {known.lower:.3g}" if known else unknown
        pytest.fail(f"{label} cannot be reached within {within:g} calls: {reason}{_cost(result)}")
    print(f"{label} is reached within {result.certificate(label).upper:.3g} expected calls{_cost(result)}")
    print(result.script(label))
    return result


def assert_explored(machine: Any, radius: float = 10, expected: Collection[str] = (), **arguments: Any) -> Result:
    """Fail if a crash or a failed invariant lies within a radius; its calls are in the message.

    Parameters
    ----------
    machine: what :func:`adagoal.machine` returns.
    radius: every state within this number of expected calls is found, which is certified.
    expected: labels of failures that are no fault, such as "crash:ValueError".
    arguments: further arguments of :func:`adagoal.explore`.
    """
    __tracebackhide__ = True
    if "goals" in arguments:
        pytest.fail("goals: leave it out, because every state counts")
    result = _explore(machine, radius, arguments)
    labels = [result.goal_label(goal) for goal in result.goals]
    failures = [label for label in labels if label.startswith(("crash:", "fails:")) and label not in expected]
    if failures:
        scripts = "\n".join(map(result.script, failures))
        pytest.fail(f"{', '.join(failures)} within {radius:g} calls{_cost(result)}\n\n{scripts}")
    print(f"{len(labels)} states within {radius:g} calls{_cost(result)}")
    return result


def _explore(machine: Any, radius: float, arguments: dict[str, Any], goals: Any = None) -> Result:
    __tracebackhide__ = True
    from adagoal.api.explore import explore
    from adagoal.core.errors import EnvironmentFailure, InputError

    # Distances are whole numbers if nothing is random, so half a call tells them apart.
    epsilon = 0.5 if getattr(machine, "deterministic", False) else 1.0
    refused = None
    try:
        result = explore(machine, radius, **{"epsilon": epsilon, "budget": BUDGET, "goals": goals} | arguments)
    except EnvironmentFailure:
        raise
    except InputError as error:
        refused = str(error)
    if refused is not None:
        pytest.fail(refused)
    if result.status != "certified":
        reasons = "; ".join(result.void) or "give a larger budget, or a larger epsilon"
        pytest.fail(f"nothing is certified, the run ended as {str(result.status)!r}{_cost(result)}: {reasons}")
    return result


def _cost(result: Result) -> str:
    return f" ({result.status} after {result.steps:,} calls and resets)"
