"""Certificates of any policy: varied values, criteria, workers, continuation and bad input."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import linecache
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import adagoal
import browser as driver
from adagoal.certification.certificate import Certification, Verdict
from adagoal.certification.episodes import STATE_VARIABLES, Episode, open_players
from adagoal.certification.policies import fingerprint_function
from adagoal.certification.value_spaces import make_value_space, parse_box
from adagoal.cli.main import run_command_line
from adagoal.core.errors import InputError, RunWarning, Status
from adagoal.report.figures import draw_certified_cells

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from certify_policies import BOX, ROWS, CoinEnv, GoalCoinEnv, always_zero, count_wrong


def easy_left(x: float) -> float:
    return 0.97 if x <= 0.0 else 0.2


def coins() -> CoinEnv:
    return CoinEnv(easy_left)


def goal_coins() -> GoalCoinEnv:
    return GoalCoinEnv(easy_left)


def certified(policy: Any = always_zero, env: Any = coins, **given: Any) -> Certification:
    given = {"radius": 2, "slack": 0.1, "halvings": 4, "workers": 1} | given
    if "goals" not in given:
        given = {"starts": BOX} | given
    return adagoal.certify(policy, env, **given)


# --- maps ---


def test_verdicts_over_starts_are_correct() -> None:
    found = certified()
    assert found.status is Status.DECIDED
    assert found.share("certified") == found.share("refuted") == 0.5
    assert found.cell({"x": -0.9, "y": 0.0}).verdict is Verdict.CERTIFIED
    assert found.cell([0.9, 0.0]).verdict is Verdict.REFUTED
    assert found.variables == ["x", "y"]
    assert (
        "a start drawn from a certified cell leads to a success within 2 steps with probability 0.8" in found.statement
    )
    # a box is cut at its exact middles, whatever its units
    wide = certified(starts={"x": (-1000.0, 1000.0), "y": (-0.1, 0.1)}, halvings=2)
    assert sorted({(*cell.low, *cell.high) for cell in wide.cells})[0] == (-1000.0, -0.1, 0.0, 0.0)


def test_verdicts_over_goals_are_correct() -> None:
    found = certified(env=goal_coins, goals=([-1.0, -1.0], [1.0, 1.0]))
    assert found.share("certified") == found.share("refuted") == 0.5
    assert found.variables == ["goal coordinate 0", "goal coordinate 1"]
    assert "a goal drawn from a certified cell is reached within 2 steps" in found.statement
    with_names = certified(env=goal_coins, goals=BOX)
    assert [vars(a)["successes"] for a in with_names.cells] == [vars(b)["successes"] for b in found.cells]
    own = certified(env=goal_coins, goals=None, starts=None, halvings=0, success=0.2, slack=0.1)
    assert own.about["goals"] == "env"


def test_values_may_be_a_list_or_a_sampler() -> None:
    values = [{"x": -0.5, "y": 0.0}, {"x": 0.5, "y": 0.0}]
    found = certified(starts=values)
    assert [(cell.verdict, cell.share) for cell in found.cells] == [("certified", 0.5), ("refuted", 0.5)]
    sampled = certified(starts=lambda rng: {"x": rng.uniform(-1, 0), "y": 0.0}, halvings=1)
    assert sampled.status is Status.CERTIFIED
    assert make_value_space("starts", [1.0, 2.0, 3.0]).tree_values.shape == (3, 1)


def test_false_verdicts_are_rare_and_weakened_bounds_fail() -> None:
    for name in ROWS:
        # more than 3 have probability 0.001 if one in ten is false
        assert (count_wrong(name, 6)["wrong"] <= 3) == ("control" not in name), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_at_most_delta_of_1000_certificates_are_wrong(name: str) -> None:
    found = count_wrong(name, 1000)
    assert (found["wrong"] <= 100) == ("control" not in name)


# --- two policies ---


def pick_right(observation: Any) -> int:
    """Take the better coin if x > 0, and the worse one otherwise."""
    return int(observation[0] > 0.0)


class ActionCoinEnv(CoinEnv):
    """Action 1 succeeds in 80% of the episodes, action 0 in 50%; and both in 30% if y > 0."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        p = 0.3 if self.place[1] > 0.0 else 0.8 if action else 0.5
        won = self.t == 2 and bool(self.np_random.random() < p)
        return self.observe(), float(won), self.t == 2, False, {"is_success": won}


def compared(policy: Any = pick_right, **given: Any) -> Certification:
    return certified(policy, ActionCoinEnv, **{"versus": always_zero} | given)


def test_two_policies_are_compared_where_they_differ() -> None:
    found = compared()
    assert found.status is Status.CERTIFIED
    assert found.cell({"x": 0.9, "y": -0.9}).verdict is Verdict.BETTER
    assert found.cell({"x": -0.9, "y": -0.9}).verdict is found.cell({"x": 0.9, "y": 0.9}).verdict is Verdict.EQUAL
    assert (found.share("better"), found.share("equal")) == (0.25, 0.75)
    for cell in found.cells:
        assert cell.at_least <= (0.3 if cell.verdict is Verdict.BETTER else 0.0) <= cell.at_most
    assert "a larger probability under pick_right than under always_zero" in found.statement
    swapped = certified(always_zero, ActionCoinEnv, versus=pick_right)
    assert swapped.status is Status.DECIDED
    assert swapped.share("worse") == 0.25
    # the same values and seeds: a policy and itself never differ
    assert not any(cell.successes + cell.failures for cell in compared(policy=always_zero).cells)
    with pytest.raises(InputError, match="versus: must be a function of the observation"):
        compared(versus=3)


def test_a_comparison_is_resumed_and_drawn(tmp_path: Path) -> None:
    whole = compared(seed=2).to_dict()
    assert compared(seed=2, out=tmp_path, observe=lambda cells, rollouts: rollouts < 300).status is Status.INTERRUPTED
    again = compared(seed=2, out=tmp_path)
    assert again.to_dict() == whole
    for names in ("x", "xy", "xyz"):
        found = compared(starts=dict.fromkeys(names, (-1.0, 1.0)), halvings=2, set_start=put_coin)
        assert draw_certified_cells(found).axes[0].get_legend().get_texts()[0].get_text().startswith("better")
        assert found.statement in adagoal.show(found).html


def put_coin(env: Any, start: dict[str, float]) -> Any:
    env.unwrapped.place = np.array([start["x"], start.get("y", -1.0)])
    return env.unwrapped.observe()


# --- workers, seeds, resume ---


def test_workers_and_interruptions_do_not_change_the_certificate(tmp_path: Path) -> None:
    whole = certified(seed=3).to_dict()
    assert certified(seed=3, workers=2).to_dict() == whole
    assert certified(seed=4).to_dict()["cells"] != whole["cells"]
    out, rounds = tmp_path / "map", iter(range(100))
    stopped = certified(seed=3, out=out, observe=lambda cells, rollouts: next(rounds) < 2)
    assert stopped.status is Status.INTERRUPTED
    assert json.loads((out / "certificate.json").read_text()) == stopped.to_dict()
    seen: list[int] = []
    again = certified(seed=3, out=out, observe=lambda cells, rollouts: seen.append(rollouts))
    assert seen[0] == stopped.rollouts
    assert again.to_dict() == whole == json.loads((out / "certificate.json").read_text())


def test_only_a_certificate_with_equal_settings_is_continued(tmp_path: Path) -> None:
    stopped = certified(out=tmp_path, observe=lambda cells, rollouts: rollouts < 100)
    seen: list[int] = []
    for other in (
        {"seed": 1},
        {"success": 0.95},
        {"policy": lambda observation: 1},
        {"starts": {"x": (-1, 0), "y": (0, 1)}},
        {"starts": {"x": (-1, 0), "y": (0, 1.0000001)}},
    ):
        certified(**({"out": tmp_path, "observe": lambda cells, rollouts: bool(seen.append(rollouts))} | other))
        assert seen.pop() == 0, other
    # code behind the same names is another question, too
    for name, functions in {
        "criterion": [lambda episode: episode.steps > 1, lambda episode: episode.steps > 9],
        "set_start": [put_coin, lambda env, start: put_coin(env, start)],
        "env": [lambda: CoinEnv(easy_left), lambda: CoinEnv(easy_left) if 1 else None],
    }.items():
        folder = tmp_path / name
        certified(**{name: functions[0]}, out=folder, observe=lambda cells, rollouts: rollouts < 100)
        for function, is_continued in ((functions[0], True), (functions[1], False)):
            certified(**{name: function}, out=folder, observe=lambda cells, rollouts: bool(seen.append(rollouts)))
            assert (seen.pop() > 0) is is_continued, name
    # and so is an environment object with other attributes
    for width, is_continued in ((1.0, False), (1.0, True), (2.0, False)):
        env = CoinEnv(easy_left)
        env.place = np.full(2, width)
        played = {"env": env, "out": tmp_path / "object"}
        certified(**played, observe=lambda cells, rollouts: bool(seen.append(rollouts)) or rollouts < 100)
        assert (seen[0] > 0) is is_continued
        seen.clear()
    more = certified(out=tmp_path, rollouts=stopped.rollouts + 200)
    assert more.status is Status.BUDGET
    certified(out=tmp_path, observe=lambda cells, rollouts: bool(seen.append(rollouts)))
    assert seen == [more.rollouts]


@pytest.mark.parametrize(
    "policy",
    [
        "type('Turn', (), {'__call__': lambda self, seen: 1})()",  # a class of the script
        "lambda seen: seen in {'left', 'right', 'up', 'down', 'stay'}",
        "functools.partial(lambda seen, names: 1, names={'left', 'right', 'up', 'down', 'stay'})",
    ],
)
def test_the_same_policy_is_recognised_in_another_process(policy: str) -> None:
    code = f"import functools; from adagoal.certification.policies import find_policy as f; print(f({policy})[2])"
    found = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("code", ["class Made:\n    size = {}\n", "def given(x):\n    return {}\n"])
def test_code_of_a_module_counts(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    fingerprints = set()
    for text in (code.format(1), code.format(20)):
        (tmp_path / "changing_code.py").write_text(text)
        sys.modules.pop("changing_code", None)
        linecache.clearcache()
        importlib.invalidate_caches()
        module = importlib.import_module("changing_code")
        given = getattr(module, "Made", None) or functools.partial(module.given)
        fingerprints.add(fingerprint_function(given, "env"))
    assert len(fingerprints) == 2


@pytest.mark.parametrize(
    "damage", [{"round": -1}, {"rollouts": [1]}, {"open_cells": [0]}, {"decided": ["x"]}, {"successes": None}]
)
def test_forged_file_gives_one_line_error(tmp_path: Path, damage: dict[str, Any]) -> None:
    certified(out=tmp_path, observe=lambda cells, rollouts: rollouts < 100)
    path = tmp_path / "certificate.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {"progress": saved["progress"] | damage}))
    with pytest.raises(InputError, match=r"certificate\.json"):
        certified(out=tmp_path)


# --- policies ---


def test_random_policy_gets_the_generator_of_its_episode() -> None:
    def random(observation: Any, rng: np.random.Generator) -> int:
        drawn.append(int(rng.integers(2)))
        return drawn[-1]

    drawn: list[int] = []
    first = certified(random, halvings=0, success=0.5, slack=0.4).to_dict()
    before, drawn = drawn, []
    assert certified(random, halvings=0, success=0.5, slack=0.4).to_dict()["cells"] == first["cells"]
    assert before == drawn
    assert {*drawn} == {0, 1}


def test_policies_are_loaded_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("control.py").write_text("def lean(observation):\n    return int(observation[2] + observation[3] > 0)\n")
    Path("rules.py").write_text(
        "def centred(episode):\n    return bool(abs(episode.observations[-1][0]) < 2.4)\n"
        "def put(env, start):\n    env.unwrapped.state[2] = start['lean']\n    return env.unwrapped.state.astype('f')\n"
    )
    words = ["--env", "CartPole-v1", "--workers", "1", "--halvings", "1"]
    start = ["--start", "x=-1:1,theta=-0.1:0.1", "--criterion", "survive:20"]
    for policy in ("control.py:lean", "control:lean"):
        assert run_command_line(["certify", policy, *words, *start]) == 0
        assert "every cell is certified after" in capsys.readouterr().out
    folder = tmp_path / "runs" / "certify-lean-CartPole-v1"
    assert {path.name for path in folder.iterdir()} == {"certificate.json", "certificate.png", "report.html"}
    other = [
        "--start",
        "lean=-0.1:0.1",
        "--set-start",
        "rules.py:put",
        "--criterion",
        "rules.py:centred",
        "--radius",
        "9",
    ]
    assert run_command_line(["certify", "control.py:lean", *words, *other, "--json"]) == 0
    assert "satisfies centred within 9 steps" in json.loads(capsys.readouterr().out)["statement"]


def test_certification_imports_neither_deep_nor_torch() -> None:
    code = (
        "import sys, adagoal.certification.episodes\n"
        "assert not {'jax', 'torch', 'adagoal.deep', 'stable_baselines3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- starts ---


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]
)
def test_classic_control_starts_in_the_given_state(name: str) -> None:
    env = gymnasium.make(name)
    variables = STATE_VARIABLES[type(env.unwrapped).__name__]
    number, seen = 0.05, list[Episode]()
    found = adagoal.certify(
        lambda observation: env.action_space.sample() * 0,
        name,
        starts={variables[0]: (number, number)},
        criterion=lambda episode: not seen.append(episode),
        radius=1,
        workers=1,
        halvings=0,
    )
    assert found.status is Status.CERTIFIED
    first = seen[0].observations[0]
    assert env.observation_space.contains(first)
    shown = np.arctan2(first[1], first[0]) if name in ("Pendulum-v1", "Acrobot-v1") else first[0]
    assert shown == pytest.approx(number, abs=1e-6)
    # the other variables keep their values from the reset
    assert len({tuple(episode.observations[0]) for episode in seen}) > (1 if len(first) > 2 else 0)


def test_wrappers_change_the_first_observation_as_the_others() -> None:
    def make() -> Any:
        env = gymnasium.wrappers.TransformObservation(gymnasium.make("CartPole-v1"), lambda seen: 10 * seen, None)
        return gymnasium.wrappers.FrameStackObservation(env, 2)

    seen: list[Any] = []
    adagoal.certify(
        lambda observation: 0,
        make,
        starts={"x": (0.5, 0.5)},
        criterion=lambda episode: not seen.append(episode.observations),
        radius=1,
        workers=1,
        halvings=0,
    )
    first, second = seen[0]
    assert first.shape == (2, 4)
    assert first[1, 0] == pytest.approx(5.0)
    assert np.array_equal(second[0], first[1])


def test_criteria() -> None:
    common: dict[str, Any] = {"starts": {"x": (-0.1, 0.1)}, "halvings": 0, "workers": 1}
    fall = adagoal.certify(lambda observation: 0, "CartPole-v1", criterion="survive:100", **common)
    assert fall.share("refuted") == 1.0
    assert fall.claim.radius == 100
    assert adagoal.certify(lambda observation: 0, "CartPole-v1", criterion="return:5", **common).status == "certified"
    assert adagoal.certify(lambda observation: 0, "CartPole-v1", criterion="return:50", **common).status == "decided"


# --- pictures ---


def test_certificates_of_any_dimension_have_a_figure(tmp_path: Path) -> None:
    for names in ("x", "xy", "xyz"):
        box = dict.fromkeys(names, (-1.0, 1.0))
        found = certified(starts=box, halvings=3, set_start=put_coin)
        figure = draw_certified_cells(found)
        labels = [ax.get_ylabel() for ax in figure.axes if "share" not in ax.get_ylabel()]
        assert labels == {"x": ["probability of success"], "xy": ["y"], "xyz": ["y", "z"]}[names]
        page = adagoal.show(found)
        assert "always_zero" in page.title
        assert found.statement in page.html


@pytest.mark.skipif(driver.found() is None, reason=driver.HOW)
def test_page_shows_cells_along_the_chosen_axes(tmp_path: Path) -> None:
    found = certified(starts={"x": (-1.0, 1.0), "y": (0.0, 2.0), "z": (0.0, 9.0)}, halvings=3, set_start=put_coin)
    path = adagoal.show(found).save(tmp_path / "page.html")
    with driver.Browser() as browser:
        page = browser.open(path.as_uri())
        page.wait("document.body.dataset.ready === 'yes'")
        assert page.evaluate("$('cells-text').textContent") == "certified 50%refuted 50%open 0%"
        assert page.evaluate("Math.max(...part('verdicts').data.top)") == 2
        page.evaluate("$('cells-y').value = 2; $('cells-y').dispatchEvent(new Event('change'))")
        assert page.evaluate("Math.max(...part('verdicts').data.top)") == 9
        assert page.evaluate("plots.cells.left[0].axis_label") == "z"
        page.evaluate("$('cells-y').value = 0; $('cells-y').dispatchEvent(new Event('change'))")
        assert page.evaluate("part('verdicts').data.bottom[0]") == pytest.approx(found.cells[0].at_least)
        assert page.troubles() == []


# --- bad input ---


def wrong_shape(observation: Any) -> Any:
    return np.zeros(3)


def broken(observation: Any) -> Any:
    raise RuntimeError("no")


class Alternating:
    """A policy with a memory: 0 and 1 in turn."""

    action = 1

    def __call__(self, observation: Any) -> int:
        self.action = 1 - self.action
        return self.action


RNG = np.random.default_rng(0)
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "starts": {"x": (0, 1)}, "radius": None}
PENDULUM = {"env": "Pendulum-v1", "starts": {"theta": (0, 1)}, "criterion": "return:0", "radius": 5}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"policy": wrong_shape}, r"policy: must return an action of Discrete\(2\), got"),
        ({"policy": lambda observation: 5}, r"policy: must return an action of Discrete\(2\), got 5"),
        ({"policy": wrong_shape, **PENDULUM}, r"policy: must return an action of shape \(1,\), got shape \(3,\)"),
        ({"policy": lambda observation: "left"}, r"policy: must return an action of Discrete\(2\), got left"),
        ({"policy": lambda observation: None}, r"policy: must return an action of Discrete\(2\), got None"),
        ({"policy": lambda observation: np.inf}, r"policy: must return an action of Discrete\(2\), got inf"),
        ({"policy": lambda observation: None, **PENDULUM}, r"policy: must return an action of Box.*, got None"),
        ({"policy": "left".upper}, "policy: the function raised TypeError"),
        ({"policy": Alternating()}, "policy: must return the same action for the same observation"),
        ({"policy": lambda observation: int(RNG.integers(2))}, "policy: must return the same action"),
        ({"rollouts": 100}, "rollouts: must be at least 128, those of the first round, got 100"),
        ({"set_start": lambda env, start: env.reset()}, "set_start: must return the observation alone, or None, got 2"),
        ({"policy": lambda observation: [np.nan], **PENDULUM}, r"policy: must return an action of Box.*, got \[nan\]"),
        ({"policy": lambda observation: [[1], [1, 2]], **PENDULUM}, r"policy: must return an action of Box"),
        ({"policy": broken}, r"policy: the function raised RuntimeError: no \(test_certify.py, line \d+\)$"),
        ({"policy": lambda observation: sys.exit(1)}, "policy: the function raised SystemExit: 1"),
        ({"criterion": lambda episode: sys.exit(1)}, "criterion: the function raised SystemExit: 1"),
        ({"set_start": lambda env, start: sys.exit(1)}, "set_start: the function raised SystemExit: 1"),
        ({"starts": lambda rng: sys.exit(1)}, "starts: the function raised SystemExit: 1"),
        ({"policy": 3}, "policy: must be a function of the observation"),
        ({"policy": "missing.zip"}, "policy: missing.zip cannot be read"),
        ({"policy": "no_such_module:f"}, "policy: no_such_module:f cannot be imported"),
        ({"env": None}, "env: missing"),
        ({"env": "NoSuchEnv-v0"}, "env: "),
        ({"env": "CartPole-v1", "radius": None}, "starts: CartPole-v1 has no variable 'y'; it has x, x_dot, theta"),
        ({"env": "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3", "radius": None, "criterion": "return:0"},
         "ignores the reset option x; give set_start"),
        ({"starts": {"x": (-1, 1), "z": (-1, 1)}}, "starts: .*CoinEnv ignores the reset option z; give set_start"),
        (CARTPOLE | {"starts": ([0.0], [1.0])}, "starts: CartPole-v1 has no variable ''; it has x, x_dot, theta"),
        (CARTPOLE | {"starts": None, "goals": ([0.0], [1.0])}, "goals: CartPole-v1 has no goals; give starts"),
        ({"starts": [{"x": 0.0}, {"y": 1.0}]}, r"starts: must all have the entries \('x',\), got {'y': 1.0}"),
        ({"starts": [{"x": 0.0}, 3]}, r"starts: must all have the entries \('x',\), got 3"),
        ({"starts": []}, "starts: must be a box"),
        ({"policy": "no-folder"}, "policy: must be a folder, MODEL.zip"),
        ({"run": 3}, "run: is for a folder of adagoal train; leave it out"),
        ({"versus": broken}, r"versus: the function raised RuntimeError: no \(test_certify.py, line \d+\)$"),
        ({"env": "CartPole-v1", "radius": None, "goals": {"x": (0, 1)}}, "goals: CartPole-v1 has no goals; give start"),
        (CARTPOLE, "criterion: missing; the environment reports no"),
        (CARTPOLE | {"criterion": "survive:501"}, "criterion: survive:501, but episodes of CartPole-v1 have 500 steps"),
        ({"env": "CartPole-v1", "starts": None}, "starts: missing; CartPole-v1 has no goals"),
        ({"goals": BOX, "starts": BOX}, "starts: give goals or starts, not both"),
        ({"starts": {"x": (1, -1)}}, "starts: low must be at most high"),
        ({"starts": {"x": 3}}, "starts: must be finite numbers low, high"),
        ({"starts": "x=1"}, "starts: must look like x=-2:2"),
        ({"starts": 7}, "starts: must be a box"),
        ({"starts": ([0.0], [1.0, 2.0])}, "starts: low and high must have the same size"),
        ({"starts": ([0.0], [1.0])}, "set_start: missing; starts of .*CoinEnv need names"),
        ({"starts": lambda rng: 1 / 0}, r"starts: the function raised ZeroDivisionError.*\(test_certify.py"),
        ({"set_start": 3}, "set_start: must be a function"),
        ({"set_start": lambda env, x: 1 / 0}, r"set_start: the function raised ZeroDivisionError.*\(test_certify.py"),
        ({"criterion": "survive"}, "criterion: must be success, survive:N"),
        ({"criterion": "survive:0"}, "criterion: must be success, survive:N"),
        ({"criterion": "survive:3", "radius": 2}, "radius: 2 steps do not fit the criterion survive:3"),
        ({"criterion": lambda episode: 3}, "criterion: the function must return True or False"),
        ({"criterion": lambda episode: 1 / 0}, r"criterion: the function raised ZeroDivisionError.*\(test_certify.py"),
        ({"radius": None}, "radius: missing; episodes of .*CoinEnv have no time limit, so give"),
        ({"radius": 0}, "radius: must be a whole number"),
        ({"success": 1.5}, "success: must be"),
        ({"env": goal_coins, "goals": ([0.0], [1.0])}, "goals: must have 2 numbers"),
        ({"env": lambda: gymnasium.wrappers.FlattenObservation(goal_coins()), "goals": ([0.0, 0.0], [1.0, 1.0])},
         "set_start: missing; goals of .*CoinEnv need names"),
    ],
)  # fmt: skip
def test_bad_input_gives_one_line_error(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        certified(**given, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_verdicts_cannot_be_asked_for_outside_of_the_cells() -> None:
    found = certified(halvings=1)
    found.cell({"x": 1.0, "y": -1.0})
    with pytest.raises(InputError, match=r"^start: .* lies outside of all cells, from \[-1.0, -1.0\] to \[1.0, 1.0\]$"):
        found.cell({"x": 1.1, "y": 0.0})
    with pytest.raises(InputError, match=r"^start: must be 2 finite numbers, got 'left'$"):
        found.cell("left")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^verdict: must be one of certified, refuted, open, got 'certifed'$"):
        found.share("certifed")


def test_a_set_start_without_effect_gives_a_warning() -> None:
    def put_wrapper(env: Any, start: Any) -> None:
        env.place = np.array([start["x"], start["y"]])  # of the wrapper

    wrapped = lambda: gymnasium.wrappers.TimeLimit(coins(), 2)  # noqa: E731
    with pytest.warns(
        RunWarning, match=r"^set_start: .* lead to the same first steps; set attributes of env.unwrapped$"
    ):
        certified(env=wrapped, set_start=put_wrapper, halvings=0, rollouts=200)


class OwnNumbersEnv(CoinEnv):
    """A coin with a generator that a reset does not seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.own = np.random.default_rng(seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        won = self.t == 2 and bool(self.own.random() < 0.8)
        return self.observe(), float(won), self.t == 2, False, {"is_success": won}


@pytest.mark.parametrize("env", [OwnNumbersEnv(3), lambda: OwnNumbersEnv(3)])
def test_an_environment_whose_copies_draw_the_same_numbers_is_refused(env: Any) -> None:
    """A block of 16 episodes would be one episode 16 times."""
    with pytest.raises(InputError, match="plays other episodes with the same seed, but its copies play the same ones"):
        certified(env=env, halvings=0, rollouts=200)


seeds_of_copies: Iterator[int] = iter(())


def make_own_numbers() -> OwnNumbersEnv:
    return OwnNumbersEnv(next(seeds_of_copies))


@pytest.mark.parametrize("seeds", [(0, 0, 1, 2), (0, 0, 2, 33)])
def test_an_environment_whose_copies_draw_other_numbers_is_accepted(
    seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies with the seeds 2 and 33 agree in their first 15 episodes by chance."""
    monkeypatch.setattr(sys.modules[__name__], "seeds_of_copies", itertools.chain(seeds, itertools.count(100)))
    assert certified(env=make_own_numbers, halvings=0, success=0.9, slack=0.2).rollouts > 0


SEEDED_SCRIPT = """
import numpy as np
np.random.seed(0)
class Player:
    def play_blocks(self, blocks, round_):
        return [np.random.random(len(values)) for _, values in blocks]
"""


def test_workers_do_not_draw_the_same_numbers_after_a_script_that_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seeded_script.py").write_text(SEEDED_SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    player = importlib.import_module("seeded_script").Player
    with open_players(player, 2) as play:
        first, second = play(np.zeros((32, 1)), 0).reshape(2, 16)
    assert not np.intersect1d(first, second).size


class RelativeGoalEnv(GoalCoinEnv):
    """Observes where the goal is; the policy must go there with every action."""

    action_space = spaces.Box(-2.0, 2.0, (2,), np.float64)

    def observe(self) -> Any:
        return super().observe() | {"observation": self.place.copy()}

    def step(self, action: Any) -> Any:
        info = {"is_success": bool(np.allclose(action, self.place))}
        return self.observe(), 0.0, False, False, info


def test_an_observation_that_shows_another_goal_first_is_refused() -> None:
    def put(env: Any, goal: Any) -> Any:
        env.unwrapped.set_goal(goal)
        return env.unwrapped.observe()

    given = {"env": RelativeGoalEnv, "goals": ([-1.0, -1.0], [1.0, 1.0]), "radius": 1}
    go = lambda seen: seen["observation"]  # noqa: E731
    with pytest.raises(InputError, match=r"^set_start: missing; the observation depends on the goal"):
        certified(go, **given)
    assert certified(go, set_start=put, **given).status is Status.CERTIFIED


class ReusedArrayEnv(gymnasium.Env[Any, Any]):
    """Returns the same array in every step, and counts in it."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)
    observation_space: Any = spaces.Box(-9.0, 9.0, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = np.array([options["x"] if options else 0.0])
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.seen += 1.0
        return self.seen, 0.0, False, False, {}


def test_episodes_remember_what_was_seen_and_done() -> None:
    buffer = np.zeros(1)

    def in_place(observation: Any) -> Any:
        buffer[:] = observation / 10.0
        observation *= 0.0
        return buffer

    def is_true(episode: Episode) -> bool:
        seen, done = np.concatenate(episode.observations), np.concatenate(episode.actions)
        start = episode.value["x"]
        return np.allclose(seen, start + np.arange(4)) and np.allclose(done, seen[:3] / 10.0)

    found = certified(in_place, ReusedArrayEnv, starts={"x": (0.0, 1.0)}, radius=3, criterion=is_true, halvings=0)
    assert found.status is Status.CERTIFIED


class NoOptionsEnv(CoinEnv):
    """Its reset takes no options."""

    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


def test_a_reset_without_options_is_enough_for_set_start() -> None:
    assert certified(env=lambda: NoOptionsEnv(easy_left), set_start=put_coin).status is Status.DECIDED


def test_changed_attributes_of_an_environment_object_count() -> None:
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.force_mag = 0.1
    lean = lambda seen: int(seen[2] + seen[3] > 0)  # noqa: E731
    found = [certified(lean, each, starts={"theta": (0.05, 0.1)}, criterion="survive:100", radius=None, halvings=0)
             for each in ("CartPole-v1", env)]  # fmt: skip
    assert [each.status for each in found] == [Status.CERTIFIED, Status.DECIDED]


def test_a_zip_without_a_model_is_not_loaded(tmp_path: Path) -> None:
    text, archive = tmp_path / "text.zip", tmp_path / "archive.zip"
    text.write_text("no archive")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data", "{}")
    for path in (text, archive):
        with pytest.raises(InputError, match=r"policy: .* is not a model of Stable-Baselines3"):
            certified(path)


@pytest.mark.parametrize("claim", [{"success": 1.0}, {"success": 0.9999999999}])
def test_a_claim_that_no_rollouts_certify_ends(claim: dict[str, float]) -> None:
    assert certified(slack=0.0, rollouts=300, **claim).status is Status.BUDGET


def test_a_box_is_parsed() -> None:
    assert parse_box("starts", "x=-2:2, theta=-0.2:0.2") == {"x": (-2.0, 2.0), "theta": (-0.2, 0.2)}
    assert parse_box("goals", "-2:2,0:1") == ([-2.0, 0.0], [2.0, 1.0])
    for text in ("x=-2:2,x=0:1", "x=-2:2,0:1", "", "x=:"):
        with pytest.raises(InputError, match=r"^starts: "):
            parse_box("starts", text)


def test_bad_input_of_the_command_gives_one_line_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["certify", "certify_policies:always_zero", "--env", "CartPole-v1", "--out", str(tmp_path / "map")]
    for more, text in (
        (["--start", "x=1"], "--start: must look like"),
        (["--start", "x=-1:1", "--criterion", "live"], "--criterion: must be success"),
        (["--start", "x=-1:1", "--set-start", "put"], "--set-start: must look like FILE.py:NAME"),
    ):
        assert run_command_line([*words, *more]) == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1
    assert not (tmp_path / "map").exists()
