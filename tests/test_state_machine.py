"""Python objects as environments: states, masks, failures, determinism, scripts, bad input."""

from __future__ import annotations

import datetime
import enum
import math
import random
import re
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adagoal
from adagoal.api.pytest_plugin import assert_explored, assert_reachable
from adagoal.core.errors import Failure
from adagoal.envs.observation_keys import key_text

EXAMPLE = Path(__file__).parents[1] / "examples" / "circuit-breaker"
sys.path.insert(0, str(EXAMPLE))
import breaker  # noqa: E402

sys.path.remove(str(EXAMPLE))


class Gate:
    """Counts up to five; the gate must be shut at three, and four raises."""

    def __init__(self) -> None:
        self.level, self.open = 0, False

    def up(self, steps: int = 1) -> None:
        self.level = min(self.level + steps, 5)
        if self.level == 4 and self.open:
            raise KeyError("four")

    def toggle(self) -> None:
        self.open = not self.open


def shut_at_three(gate: Gate) -> bool:
    return not (gate.open and gate.level == 3)


def level_and_open(gate: Gate) -> tuple[int, bool]:
    return gate.level, gate.open


def certified(env: Any, radius: float = 8, **arguments: Any) -> adagoal.Result:
    result = adagoal.explore(env, radius, **{"epsilon": 0.5, "budget": 100_000, **arguments})
    assert result.status == "certified"
    assert not result.void
    return result


def replay(script: str, tmp_path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script with pytest, beside the module that it imports."""
    (tmp_path / "test_script.py").write_text(script)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider"]
    place = {"PYTHONPATH": f"{folder}:{Path(adagoal.__file__).parents[1]}", "PATH": ""}
    return subprocess.run([*command, str(tmp_path)], env=place, capture_output=True, text=True)


def test_a_rare_state_is_found_and_its_script_replayed(tmp_path: Path) -> None:
    env = breaker.machine()
    result = certified(env, 10)
    assert result.certificate("('HALF_OPEN', 0, 0)") == (7, 7)
    assert result.certificate("crash:KeyError") == (8, 8)
    assert {math.floor(c.lower) for c in result.certificates.values()} >= set(range(11))
    assert env.n_calls < 100  # 12 states with three calls each, and the paths to them
    script = result.script("('HALF_OPEN', 0, 0)")
    assert script.count("machine.") == 7
    assert "assert state(machine) == ('HALF_OPEN', 0, 0)" in script
    for text in (script, result.script("crash:KeyError")):
        done = replay(text, tmp_path, EXAMPLE)
        assert "1 passed" in done.stdout, done.stdout + done.stderr
    # The scripts are tests: they fail if the system behaves differently.
    assert "1 failed" in replay(script.replace("machine.tick()\n", "pass\n", 1), tmp_path, EXAMPLE).stdout


def test_documented_example_runs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE / "breaker.py"], capture_output=True, text=True, check=True)
    assert "7 to 7 calls: ('HALF_OPEN', 0, 0)" in done.stdout
    assert done.stdout.count("machine.") == 8


@pytest.mark.parametrize("state", [None, level_and_open])
def test_distances_equal_breadth_first_search(state: Any) -> None:
    """The search creates new objects and does not use the environment."""
    actions = {"up": [1, 2], "toggle": []}
    result = certified(adagoal.machine(Gate, actions, state, crashes=KeyError, deterministic=True), 6)
    hops, queue = {(0, False): 0}, deque([()])
    while queue:
        path = queue.popleft()
        for call in (("up", 1), ("up", 2), ("toggle",)):
            gate = Gate()
            try:
                for name, *arguments in (*path, call):
                    getattr(gate, name)(*arguments)
            except KeyError:
                hops.setdefault("crash:KeyError", len(path) + 1)
                continue
            if level_and_open(gate) not in hops:
                hops[level_and_open(gate)] = len(path) + 1
                queue.append((*path, call))
    assert len(result.goals) == len(hops)
    for key, distance in hops.items():
        label = key if isinstance(key, str) else str(key) if state else f"Gate(level={key[0]}, open={key[1]})"
        assert result.certificate(label) == (distance, distance)
        assert result.script(label).count(" machine.") == distance


def test_without_deterministic_flag_certificates_need_more_samples() -> None:
    promised = adagoal.machine(Gate, ["up", "toggle"], level_and_open, deterministic=True)
    counted = adagoal.machine(Gate, ["up", "toggle"], level_and_open)
    first, second = certified(promised, 5.4), certified(counted, 5.4)
    assert {first.label(g) for g in first.goals} == {second.label(g) for g in second.goals}
    assert promised.n_calls < 100 < counted.n_calls
    assert any("always leads to the same state" in line for line in first.warnings)
    assert not second.warnings
    for goal in second.goals:
        lower, upper = second.certificates[goal]
        assert lower <= first.certificate(second.label(goal)).upper <= upper


def test_preconditions_are_respected() -> None:
    class Careful(Gate):
        def toggle(self) -> None:
            assert self.level < 2
            super().toggle()

        def up(self, steps: int = 1) -> None:
            assert not self.open
            super().up(steps)

    def allowed(gate: Gate, name: str, *arguments: int) -> bool:
        return gate.level < 2 if name == "toggle" else not gate.open and arguments == (1,)

    by_name = {"toggle": lambda gate: gate.level < 2, "up": lambda gate, steps: not gate.open and steps == 1}
    for given in (allowed, by_name):
        env = adagoal.machine(Careful, {"up": [1, 2], "toggle": []}, level_and_open, allowed=given, deterministic=True)
        result = certified(env)
        assert sorted(result.label(g) for g in result.goals) == sorted(
            str(key) for key in [(0, False), (0, True), (1, True), *((level, False) for level in range(1, 6))]
        )


class FullError(Exception):
    pass


class Inbox:
    def __init__(self) -> None:
        self.length = 0

    def put(self, mail: list[int]) -> None:
        mail.append(1)
        self.length += len(mail)
        if self.length > 5:
            raise FullError


def test_calls_do_not_change_the_arguments_of_later_calls() -> None:
    result = certified(adagoal.machine(Inbox, {"put": [[0]]}, deterministic=True))
    assert [result.label(goal) for goal in result.goals] == [
        *(f"Inbox(length={length})" for length in (0, 2, 4)),
        "crash:FullError",
    ]


def test_scripts_fail_if_another_exception_is_raised(tmp_path: Path) -> None:
    """Exceptions that are no builtins are expected by their names, and missing names fail outside of the block."""
    folder = Path(__file__).parent
    script = certified(adagoal.machine(Inbox, {"put": [[0]]}, deterministic=True)).script("crash:FullError")
    assert "1 passed" in replay(script, tmp_path, folder).stdout
    assert (
        "1 failed" in replay(script.replace("put([0])\n    assert", "give([0])\n    assert"), tmp_path, folder).stdout
    )
    env = adagoal.machine(
        Inbox, [lambda inbox: inbox.put([0])], invariants=[lambda inbox: inbox.length < 3], deterministic=True
    )
    script = certified(env).script("fails:<lambda>")
    output = replay(script, tmp_path, folder).stdout
    assert "NameError: name 'action' is not defined" in output
    named = "action = lambda inbox: inbox.put([0])\n" + script
    assert "NameError: name 'invariant' is not defined" in replay(named, tmp_path, folder).stdout
    named = "invariant = lambda inbox: inbox.length < 3\n" + named
    assert "1 passed" in replay(named, tmp_path, folder).stdout


class Waiting:
    """Calls of its methods do nothing by themselves."""

    async def later(self) -> None: ...

    def parts(self) -> Any:
        yield 1


class Parcel:
    """Remembers what it was given last."""

    def __init__(self) -> None:
        self.given: Any = None

    def put(self, value: Any) -> None:
        self.given = value


def test_scripts_write_arguments_of_any_simple_type(tmp_path: Path) -> None:
    values = [datetime.date(2026, 1, 2), np.int64(3), np.float32(0.5), np.array([1, 2]), math.inf, -math.inf]
    result = certified(adagoal.machine(Parcel, {"put": values}, deterministic=True), 2)
    assert len(result.goals) == 1 + len(values)
    for goal in result.goals:
        script = result.script(goal)
        assert "1 passed" in replay(script, tmp_path, Path(__file__).parent).stdout, script


def test_reset_leaves_a_state_without_calls() -> None:
    env = adagoal.machine(Gate, ["up"], level_and_open, allowed=lambda gate, _: gate.level < 3, deterministic=True)
    assert len(certified(env).goals) == 4


def test_failures_are_goals() -> None:
    env = adagoal.machine(
        Gate, ["up", "toggle"], level_and_open, invariants=[shut_at_three], crashes=KeyError, deterministic=True
    )
    result = certified(env)
    assert result.certificate("fails:shut_at_three") == (4, 4)
    # Only three with an open gate leads to the error, and that state has failed already.
    assert "crash:KeyError" not in [result.label(g) for g in result.goals]
    assert "assert shut_at_three(machine) in (None, True)" in result.script("fails:shut_at_three")
    named = certified(env, goals=["fails:shut_at_three"])
    assert named.certificate("fails:shut_at_three") == (4, 4)
    # Goals that are functions of keys are not asked about failures.
    opened = certified(env, goals={"open": lambda key: key[1]})
    assert opened.certificate("open") == (1, 1)
    levels = certified(env, goals=lambda key: key[0])
    assert set(levels.goal_names or ()) >= {"0", "3", "fails:shut_at_three"}


def test_key_and_failure_with_the_same_text_are_two_states() -> None:
    class Liar:
        said = ""

        def lie(self) -> None:
            self.said = "crash:KeyError"

        def fail(self) -> None:
            raise KeyError

    env = adagoal.machine(Liar, ["lie", "fail"], lambda liar: liar.said, deterministic=True)
    assert len(certified(env, 2).goals) == 3


def test_other_exceptions_end_the_run_and_name_the_calls() -> None:
    env = adagoal.machine(Gate, ["up", "toggle"], level_and_open, crashes=ValueError, deterministic=True)
    with pytest.raises(adagoal.InputError, match=r"crashes: up\(\) after .*up\(\) raised KeyError: 'four'"):
        adagoal.explore(env, 8, 0.5)


def test_non_deterministic_system_is_reported() -> None:
    class Flaky(Gate):
        calls = 0

        def up(self, steps: int = 1) -> None:
            Flaky.calls += 1
            super().up(steps * (Flaky.calls % 5 > 0))

    env = adagoal.machine(Flaky, ["up", "toggle"], level_and_open, deterministic=True)
    with pytest.raises(adagoal.InputError, match=r"deterministic: up\(\) in state .* led to .* once and to .* now"):
        adagoal.explore(env, 5, 0.5)


def test_reset_to_another_state_is_reported() -> None:
    made = []

    def make() -> list[int]:
        made.append(0)
        return [0] * (len(made) > 20)

    with pytest.raises(adagoal.InputError, match="deterministic: make"):
        adagoal.explore(adagoal.machine(make, {"append": [1], "clear": []}, len, deterministic=True), 4, 0.5)


class Dice:
    """Moves on with probability 0.8; random numbers come from the environment."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.place = rng, 0

    def throw(self) -> None:
        self.place += self.place < 3 and self.rng.random() < 0.8


def place(dice: Dice) -> int:
    return dice.place


def test_random_systems_have_the_most_likely_path_and_can_be_repeated() -> None:
    runs = [certified(adagoal.machine(Dice, ["throw"], place), 5, epsilon=2.0, seed=1) for _ in range(2)]
    assert runs[0].certificates == runs[1].certificates
    lower, upper = runs[0].certificate("2")
    assert lower <= 2 / 0.8 <= upper
    script = runs[0].script("2")
    assert script.count("machine.throw()") == 2
    assert "# the system is random: this happened in 0.6" in script
    assert "from test_state_machine import Dice, place" in script
    assert "    machine = Dice(default_rng())\n" in script
    assert "from numpy.random import default_rng\n" in script


def test_a_random_start() -> None:
    env = adagoal.machine(lambda rng: [0] * int(rng.integers(3)), {"append": [1], "clear": []}, len)
    result = adagoal.explore(env, 4, 2.0, start="random", goals=["3"])
    assert result.status == "certified"
    assert "machine = make(default_rng())" in result.script("3")
    assert result.script("3").count("append") in (1, 2, 3)


def test_saved_results_and_resumed_runs(tmp_path: Path) -> None:
    def make_env() -> Any:
        return adagoal.machine(Gate, {"up": [1, 2], "toggle": []}, level_and_open)

    whole = adagoal.explore(make_env(), 6, 1.0, seed=3, out=tmp_path / "whole")
    loaded = adagoal.load(tmp_path / "whole")
    assert isinstance(loaded, adagoal.Result)
    assert loaded.script("crash:KeyError") == whole.script("crash:KeyError")
    assert loaded.policy("(2, True)").act((2, False)) == whole.policy("(2, True)").act((2, False))
    adagoal.explore(make_env(), 6, 1.0, seed=3, out=tmp_path / "part", budget=whole.steps // 2)
    again = adagoal.resume(tmp_path / "part", budget=10**6, env=make_env())
    assert isinstance(again, adagoal.Result)
    assert again.status == "certified"
    assert [again.label(g) for g in again.goals] == [whole.label(g) for g in whole.goals]


def test_scripts_of_gymnasium_environments() -> None:
    lake = adagoal.explore("FrozenLake-v1", radius=4, env_args={"is_slippery": False})
    assert lake.script("(1, 0)").splitlines()[1:] == ["    env.reset()", "    env.step(1)", "    # state: (1, 0)"]
    with pytest.raises(adagoal.InputError, match="no goal is called"):
        lake.script("nowhere")
    taxi = adagoal.explore("Taxi-v4", radius=2, budget=2000)
    starts = [g for g in taxi.certificates if g != taxi.view.start]
    assert min(taxi.script(g).count("env.step") for g in starts) == 0, "the reset draws the first state"


class Colour(enum.Enum):
    RED = 1


@dataclass
class Part:
    a: int = 1
    b: Any = None


class Word(str):
    pass


class Mixin:
    pass


class Secret(str, Mixin):
    def __str__(self) -> str:
        return "***"


def test_equal_keys_have_equal_texts_and_others_differ() -> None:
    values = [None, True, 1, 1.0, "1", b"1", (1,), [1], {1}, {1: 2}, OrderedDict({1: 2}), deque([1]), Colour.RED]
    values += [Word("1"), Word("2"), Part(), Part(b=[Part()]), Part, np.arange(2), np.arange(2.0), np.int64(1), len]
    values += [Secret("1"), Secret("2"), deque([1], 1), deque([1], 2), np.zeros((0, 1)), np.zeros((0, 2))]
    values += [Failure("'1'x"), "RED", (1, 2), ((1,), 2), {"a": (1,)}, {"a": [1]}]
    texts = [key_text(value) for value in values]
    assert len(set(texts)) == len(texts)
    assert key_text({3, 1, 2}) == key_text({2, 3, 1})
    assert key_text((1, "a", None)) == repr((1, "a", None))


class Loop:
    def __init__(self) -> None:
        self.next = self


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (threading.Lock(), "the value has the type lock, which cannot be compared"),
        (Part(b=[random.Random(0)]), r"b\[0\] has the type Random, which cannot be compared"),
        (type("Mine", (random.Random,), {})(0), "the value has the type Mine"),
        (Part(b=lambda: 0), "b has the type function"),
        (object(), "the value has the type object"),
        (Loop(), "next refers to itself"),
    ],
)
def test_invalid_keys_are_refused(value: Any, message: str) -> None:
    with pytest.raises(adagoal.InputError, match=f"state: {message}"):
        key_text(value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3, ["up"])), "make: must be a class or a function that makes a fresh object, got 3"),
        ((Gate,), 'actions: must be given, such as {"push"'),
        ((Gate, "up"), "actions: must be a dictionary such as"),
        ((Gate, []), "actions: there must be 1 to 32766 calls, got 0"),
        ((Gate, {"up": 3}), r"actions: the arguments of up must be a list such as \[1, 2\], or \[\] for none; got 3"),
        ((Gate, {"up": "12"}), "actions: the arguments of up must be a list"),
        ((Gate, ["up", "up"]), r"actions: up\(\) is given twice; give it once"),
        (
            (Gate, [lambda gate: None, lambda gate: gate.up()]),
            "actions: <lambda>.. is given twice; give it once, or fu",
        ),
        ((Gate, {"up": [(1, 2)]}), r"actions: up\(1, 2\) does not fit up\(steps: 'int' = 1\).*: too many positional"),
        ((Gate, {shut_at_three: [1]}), r"actions: shut_at_three\(1\) does not fit shut_at_three\(gate"),
        ((Gate, ["down"]), "actions: a Gate has no method 'down'"),
        (
            (Waiting, ["later"]),
            "actions: a call of later runs none of its code, because it is async or a generator; give",
        ),
        ((Waiting, ["parts"]), "actions: a call of parts runs none of its code"),
        ((Gate, [3]), "actions: must be names of methods, or functions of the object; got 3"),
        ((Gate, ["up"], 3), "state: must be a function of the object that returns a key, got 3"),
        ((Gate, ["up"], lambda gate: gate.none), r"state: the function raised AttributeError.*\(test_state_mach"),
        ((Gate, ["up"], lambda gate: threading.Lock()), "state: the value has the type lock"),
        ((lambda: 1 / 0, ["up"]), r"make: it raised ZeroDivisionError: division by zero \(test_state_machine.py"),
        ((lambda a, b: 0, ["up"]), "make: must take no argument, or one random generator; it takes a, b"),
        ((Gate, ["up"], None, {"allowed": 3}), "allowed: must be a function, or a dictionary of functions by action"),
        ((Gate, ["up"], None, {"allowed": {"down": len}}), "allowed: there is no action 'down'; there are up"),
        ((Gate, ["up"], None, {"allowed": {"up": 3}}), "allowed: the precondition of up must be a function, got 3"),
        ((Gate, ["up"], None, {"allowed": lambda gate: True}), "allowed: the precondition raised TypeError"),
        ((Gate, ["up"], None, {"invariants": len}), "invariants: must be a list of functions of the object"),
        ((Gate, ["up"], None, {"invariants": [3]}), "invariants: must be a list of functions of the object"),
        ((Gate, ["up"], None, {"invariants": [len, len]}), "invariants: two are called len; give them different names"),
        ((Gate, ["up"], None, {"crashes": "KeyError"}), "crashes: must be an exception class, or a tuple of them"),
        ((Gate, ["up"], None, {"crashes": KeyboardInterrupt}), "crashes: must be an exception class"),
        ((Gate, ["up"], None, {"deterministic": 1}), "deterministic: must be True or False, got 1"),
    ],
)
def test_bad_input_gives_one_line_error(arguments: tuple[Any, ...], message: str) -> None:
    *given, named = arguments if isinstance(arguments[-1], dict) and len(arguments) == 4 else (*arguments, {})
    with pytest.raises(adagoal.InputError, match=message) as raised:
        adagoal.machine(*given, **named)
    assert "\n" not in str(raised.value)


def test_examples_of_the_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (EXAMPLE.parents[1] / "docs" / "state-machines.md").read_text()
    monkeypatch.chdir(EXAMPLE.parents[1])
    monkeypatch.setattr(sys, "path", list(sys.path))
    space: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block, space)
    space["test_half_open_is_reached"](assert_reachable)
    space["test_nothing_fails"](assert_explored)
    printed = capsys.readouterr().out
    for block in re.findall(r"```text\n(.*?)```", page, re.S):
        assert block in printed
    rows = re.findall(r"\| (.*?) \| ([\d.]+) \| ([\d,]+) \| ([\d.]+) to ([\d.]+) \|", page)
    assert len(rows) == 3
    for given, epsilon, calls, lower, upper in rows:
        env = adagoal.machine(
            breaker.Breaker, {"request": [True, False], "tick": []}, breaker.state, deterministic="=" in given
        )
        result = adagoal.explore(env, 10, float(epsilon), seed=100)
        assert f"{env.n_calls:,}" == calls
        assert result.certificate("('HALF_OPEN', 0, 0)") == pytest.approx((float(lower), float(upper)), abs=0.005)
