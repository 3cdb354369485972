"""A way to a goal as Python text: the most likely sequence of calls that a run observed, as a test."""

from __future__ import annotations

import ast
import builtins
import contextlib
import heapq
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.types import CallTexts, Failure


class Path(NamedTuple):
    """A sequence of actions from the start to a goal."""

    actions: list[int]
    end: int  # the state of the goal that it leads to
    probability: float  # product of the observed frequencies; 1 if no call on the way had another effect


def most_likely_path(arrays: Mapping[str, NDArray[Any]], n_actions: int, start: int, ends: Sequence[int]) -> Path:
    """Return the most likely path in the empirical model of a result, the shortest if several are equally likely.

    It is a shortest path for the costs (-ln p, 1) in lexicographic order. Without randomness the first cost is zero, so
    the path has the fewest calls.
    """
    pairs, successors, counts = arrays["moves_pair"], arrays["moves_to"], arrays["moves_count"]
    total = np.bincount(pairs, counts)
    moves: dict[int, list[tuple[float, int, int]]] = {}
    for pair, successor, count in zip(pairs.tolist(), successors.tolist(), counts.tolist(), strict=True):
        cost = math.log(total[pair] / count)
        moves.setdefault(pair // n_actions, []).append((cost, pair % n_actions, successor))
    wanted, done = set(ends), set()
    queue: list[tuple[float, int, int, list[int]]] = [(0.0, 0, start, [])]
    while queue:
        cost, steps, state, actions = heapq.heappop(queue)
        if state in wanted:
            return Path(actions, state, math.exp(-cost))
        if state in done:
            continue
        done.add(state)
        for extra, action, successor in moves.get(state, ()):
            if successor not in done:
                heapq.heappush(queue, (cost + extra, steps + 1, successor, [*actions, action]))
    raise InputError("the run has observed no way to this goal")


def write_script(
    texts: CallTexts | None, path: Path, label: str, goal: str, find_state: Callable[[Any], int | None]
) -> str:
    """Return a test that makes the calls of a path and checks the state ``label`` at its end.

    ``find_state`` maps a key to its state. Without texts the calls are steps of a Gymnasium environment.
    """
    texts = texts or CallTexts((), "env.reset()", (), None, {})
    calls = [texts.calls[a] if a < len(texts.calls) else f"env.step({a})" for a in path.actions]
    body = [texts.make]
    # A failure and a key of the same text are different states.
    is_failure = texts.calls and find_state(Failure(label)) == path.end
    kind, _, name = label.partition(":") if is_failure else ("", "", "")
    if path.probability < 1.0:
        body.append(f"# the system is random: this happened in {path.probability:.3g} of such attempts")
    if kind == "crash" and calls:
        # A class that is no builtin would have to be imported, and its module is not known.
        expected = name if hasattr(builtins, name) else "Exception"
        body += [*calls[:-1], f"with pytest.raises({expected}):  # {label}", f"    {calls[-1]}"]
    elif kind == "fails" and name in texts.invariants:
        check = f"assert {texts.invariants[name]} in (None, True)"
        body += [*calls, f"with pytest.raises(Exception):  # {label}", f"    {check}"]
    else:
        literal = None if texts.state is None else _key_literal(label, path.end, find_state)
        body += [*calls, f"# state: {label}" if literal is None else f"assert {texts.state} == {literal}"]
    # A goal of any name becomes a function name.
    test = re.sub(r"\W+", "_", goal).strip("_").lower() or "goal"
    lines = [f"def test_{test}():", *(f"    {line}" for line in body)]
    return "\n".join([*_import_lines(texts.imports, body), *lines]) + "\n"


def _import_lines(imports: Sequence[str], body: list[str]) -> list[str]:
    """Return the imports that the lines of a test need, one line per module, and two empty lines."""
    words = set(re.findall(r"\w+", "\n".join(body)))
    names: dict[str, list[str]] = {}
    for line in imports:
        module, _, name = line.removeprefix("from ").partition(" import ")
        if name in words:
            names.setdefault(module, []).append(name)
    lines = [f"from {module} import {', '.join(sorted(found))}" for module, found in sorted(names.items())]
    lines = ["import pytest", *lines] if "pytest" in words else lines
    return [*lines, "", ""] if lines else []


def _key_literal(label: str, state: int, find_state: Callable[[Any], int | None]) -> str | None:
    """Return the key of a state as a Python literal, or None if its label is not one."""
    candidates: list[Any] = [label]
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        candidates.insert(0, ast.literal_eval(label))
    return next((repr(key) for key in candidates if find_state(key) == state), None)
