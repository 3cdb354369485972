"""Calls until a planted fault is found: adagoal, and the stateful search of Hypothesis.

    python benchmarks/stateful.py [--seeds 10] [--limit 20000]

Needs Hypothesis. Every system counts its calls; resets are free for both. Hypothesis runs with its own defaults (50
calls per example), and with ten calls per example, which is the radius of adagoal.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import adagoal

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "circuit-breaker"))
import breaker


class Lock:
    """Opens after seven right digits of 0 to 3 in a row."""

    code = (2, 0, 3, 3, 1, 0, 2)

    def __init__(self) -> None:
        self.right = 0

    def press(self, digit: int) -> None:
        self.right = self.right + 1 if digit == self.code[self.right] else 0
        assert self.right < len(self.code)


class Cache:
    """Keeps the last three of six keys; it forgets to store a key again after the key was evicted and deleted."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.evicted: set[int] = set()

    def put(self, key: int) -> None:
        self.keys = [*(k for k in self.keys if k != key), key]
        if len(self.keys) > 3:
            self.evicted.add(self.keys.pop(0))

    def delete(self, key: int) -> None:
        if key in self.keys:
            self.keys.remove(key)
            assert key not in self.evicted


SYSTEMS: dict[str, tuple[type, dict[str, list[Any]], float]] = {
    "circuit breaker, 8 calls": (breaker.Breaker, {"request": [True, False], "tick": []}, 10),
    "lock, 7 calls": (Lock, {"press": [0, 1, 2, 3]}, 10),
    "cache, 6 calls": (Cache, {"put": [0, 1, 2, 3, 4, 5], "delete": [0, 1, 2, 3, 4, 5]}, 6),
}


class OutOfCalls(BaseException):
    """The limit of calls is reached."""


def counted(system: type, limit: float = float("inf")) -> tuple[type, dict[str, int]]:
    """Return the class with calls that count themselves, and the counts; ``found`` is the count at the first fault."""
    log = {"calls": 0}

    def wrap(method: Any) -> Any:
        def call(self: Any, *arguments: Any) -> None:
            if log["calls"] >= limit:
                raise OutOfCalls
            log["calls"] += 1
            try:
                method(self, *arguments)
            except Exception:
                log.setdefault("found", log["calls"])
                raise

        return call

    methods = {name: wrap(method) for name, method in vars(system).items() if callable(method) and name[0] != "_"}
    return type(system.__name__, (system,), methods), log


def search_with_adagoal(system: type, actions: dict[str, list[Any]], radius: float, seed: int) -> dict[str, int]:
    """Explore within the radius until everything is certified."""
    made, log = counted(system)
    world = adagoal.machine(made, actions, deterministic=True)
    result = adagoal.explore(world, radius, 0.5, seed=seed)
    assert result.status == "certified"
    return log


def search_with_hypothesis(
    system: type, actions: dict[str, list[Any]], seed: int, limit: int, steps: int
) -> dict[str, int]:
    """Run the stateful search until it finds the fault, or spends the limit."""
    made, log = counted(system, limit)

    def start(self: Any) -> None:
        RuleBasedStateMachine.__init__(self)
        self.system = made()

    def make_rule(name: str, values: list[Any]) -> Any:
        def call(self: Any, value: Any = None) -> None:
            getattr(self.system, name)(*([value] if values else []))

        call.__name__ = name
        return rule(**({"value": strategies.sampled_from(values)} if values else {}))(call)

    rules = {name: make_rule(name, values) for name, values in actions.items()}
    machine = hypothesis.seed(seed)(type("Rules", (RuleBasedStateMachine,), {"__init__": start, **rules}))
    settings = hypothesis.settings(
        max_examples=10**6,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    with contextlib.suppress(Exception, OutOfCalls):
        run_state_machine_as_test(machine, settings=settings)
    # Any other end would be a mistake of this file.
    assert "found" in log or log["calls"] >= limit
    return log


def median(values: list[float]) -> str:
    """Return the median as text."""
    middle = statistics.median(values)
    return f"{middle:,.0f}" if middle < float("inf") else "not found"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--limit", type=int, default=20_000)
    options = parser.parse_args()
    seeds = range(100, 100 + options.seeds)
    print("| system | adagoal: found | certified | Hypothesis, 50 per example: found | at equal calls |", end="")
    print(" 10 per example: found | at equal calls |\n|---|---|---|---|---|---|---|")
    for name, (system, actions, radius) in SYSTEMS.items():
        ours = [search_with_adagoal(system, actions, radius, seed) for seed in seeds]
        certified = statistics.median(log["calls"] for log in ours)
        cells = [name, median([log["found"] for log in ours]), f"{certified:,.0f}"]
        for steps in (50, 10):
            logs = [search_with_hypothesis(system, actions, s, options.limit, steps) for s in seeds]
            found = [log.get("found", float("inf")) for log in logs]
            cells += [median(found), f"{sum(f <= certified for f in found)} of {len(found)}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
