"""State machines of Hypothesis: rules, strategies, preconditions, invariants, initialize rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

import adagoal
from adagoal.envs.hypothesis_rules import MAX_ARGUMENT_VALUES, _list_values


class Lift(RuleBasedStateMachine):
    """A lift with floors 0 to 4; the door must not be open on floor 3, and a button on floor 4 is broken."""

    torn_down = 0

    def __init__(self) -> None:
        super().__init__()
        self.floor, self.open = 0, False

    @initialize(floor=strategies.sampled_from([0, 1]))
    def begin(self, floor: int) -> None:
        self.floor = floor

    @precondition(lambda self: not self.open)
    @rule(by=strategies.integers(-1, 1).filter(bool))
    def move(self, by: int) -> None:
        assert not self.open
        assume(0 <= self.floor + by <= 4)
        self.floor += by

    @rule()
    def door(self) -> None:
        self.open = not self.open

    @rule(button=strategies.tuples(strategies.just(1), strategies.none() | strategies.sampled_from("ab")))
    def press(self, button: Any) -> None:
        if self.floor == 4 and self.open and button == (1, "b"):
            raise KeyError(button)

    @precondition(lambda self: self.floor == 3)
    @invariant()
    def shut_on_three(self) -> None:
        assert not self.open

    def teardown(self) -> None:
        Lift.torn_down += 1


def floor_and_door(lift: Lift) -> tuple[int, bool]:
    return lift.floor, lift.open


# A script calls the rules without adagoal, and assume() warns there.
@pytest.mark.filterwarnings("ignore:Using `assume` outside")
@pytest.mark.parametrize("state", [None, floor_and_door])
def test_state_machine_class_is_used_unchanged(state: Any) -> None:
    Lift.torn_down = 0
    env = adagoal.machine(Lift, state=state, deterministic=True)
    result = adagoal.explore(env, radius=9, epsilon=0.5)
    assert result.status == "certified"
    assert not result.void
    names = [result.label(g) for g in result.goals]
    keys = [(floor, is_open) for floor in range(5) for is_open in (False, True) if (floor, is_open) != (3, True)]
    labels = [str(key) if state else f"{{'floor': {key[0]}, 'open': {key[1]}}}" for key in keys]
    assert set(labels) < set(names)
    assert len(names) == len(labels) + 3
    # begin(1), two moves, door; begin(1), three moves, door, press
    assert result.certificate("fails:shut_on_three") == (4, 4)
    assert result.certificate("crash:KeyError") == (6, 6)
    script = result.script("crash:KeyError")
    assert "machine.begin(floor=1)\n    machine.move(by=1)" in script
    assert "with pytest.raises(KeyError):  # crash:KeyError\n        machine.press(button=(1, 'b'))" in script
    exec(script + "\ntest_crash_keyerror()")
    exec(result.script("fails:shut_on_three") + "\ntest_fails_shut_on_three()")
    assert Lift.torn_down > 10


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        (strategies.sampled_from("aab"), ["a", "b"]),
        (strategies.sampled_from([1, 2, 3]).map(lambda x: 2 * x).filter(lambda x: x > 2), [4, 6]),
        (strategies.booleans(), [False, True]),
        (strategies.integers(2, 4), [2, 3, 4]),
        (strategies.integers(2, 4).map(str), ["2", "3", "4"]),
        (strategies.integers(0, 9).filter(lambda x: x % 4 == 0).filter(lambda x: x > 0), [4, 8]),
        (strategies.just(3) | strategies.none() | strategies.booleans(), [3, None, False, True]),
        (strategies.tuples(strategies.booleans(), strategies.just(1)), [(False, 1), (True, 1)]),
        (strategies.integers(1, MAX_ARGUMENT_VALUES), [*range(1, MAX_ARGUMENT_VALUES + 1)]),
    ],
)
def test_values_of_strategies(strategy: Any, values: list[Any]) -> None:
    assert _list_values(strategy, "here") == values


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (strategies.integers(), r"rule go, argument x has no finite list of values \(integers\(\)\); use sampled_from"),
        (strategies.integers(0, 10**30), "rule go, argument x has more than 1,000 values"),
        (strategies.text(), "rule go, argument x has no finite list of values"),
        (strategies.lists(strategies.booleans()), "rule go, argument x has no finite list of values"),
        (strategies.data(), "rule go, argument x has no finite list of values"),
        (strategies.tuples(strategies.booleans(), strategies.floats()), "rule go, argument x has no finite list"),
        (Bundle("items"), "rule go, argument x draws from the bundle 'items'; use sampled_from"),
        (strategies.integers(0, 2).map(lambda x: 1 // x), "rule go: .* cannot be listed .ZeroDivisionError"),
    ],
)
def test_strategies_without_a_short_list_are_refused(strategy: Any, message: str) -> None:
    def go(self: Any, x: Any) -> None: ...

    machine = type("Machine", (RuleBasedStateMachine,), {"go": rule(x=strategy)(go)})
    with pytest.raises(adagoal.InputError, match=f"make: {message}") as raised:
        adagoal.machine(machine)
    assert "\n" not in str(raised.value)


def test_arguments_defined_by_the_rules_are_refused() -> None:
    with pytest.raises(adagoal.InputError, match="actions: come from the rules of a RuleBasedStateMachine"):
        adagoal.machine(Lift, ["door"])
    with pytest.raises(adagoal.InputError, match="allowed: come from the rules"):
        adagoal.machine(Lift, allowed=lambda lift, name: True)
    with pytest.raises(adagoal.InputError, match="make: Empty has 0 rules with arguments"):
        adagoal.machine(type("Empty", (RuleBasedStateMachine,), {}))
