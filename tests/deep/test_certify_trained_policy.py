"""Certificates of trained policies: partition into cells, verdicts, and the command."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from small_training import load_policy

import adagoal
from adagoal.certification import certificate as certificates
from adagoal.certification.certificate import CellVerdict, Certification, Claim, Verdict
from adagoal.certification.certifier import SPLIT_SAMPLE_SIZE, Certifier
from adagoal.certification.episodes import open_players
from adagoal.certification.value_spaces import CellTree
from adagoal.cli.main import run_command_line
from adagoal.core import confidence_bounds
from adagoal.core.array_types import Bools, Floats
from adagoal.core.confidence_bounds import clopper_pearson_interval
from adagoal.core.errors import InputError, Status
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.deep.env_inspection import measure_dimensions
from adagoal.deep.goal_envs import EnvSource, GoalEnv
from adagoal.deep.pointmass import PointMass
from adagoal.deep.policy_evaluation import prepare_certification
from adagoal.report.figures import verdict_share_map

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from deep_certify import CLAIM, POLICIES, coins, counted, flat, square
from deep_certify import certified as certificate


def certified(claim: Claim, truth: Callable[[Floats], Floats], seed: int) -> Certification:
    """Certify a policy that reaches each goal with a known probability."""
    return certificate(coins(truth)._replace(claim=claim), seed)


# --- cells ---


def table_goals(rng: np.random.Generator, n: int) -> Floats:
    """Draw goals as in PickAndPlace: half of them on a table, with a constant first coordinate."""
    height = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(0.0, 1.0, n))
    return np.stack([np.ones(n), rng.normal(size=n), height], 1)


@pytest.mark.parametrize("space", [square, table_goals])
def test_cells_of_a_level_are_a_partition(space: Any) -> None:
    cells = CellTree(space(np.random.default_rng(0), 5000), 5)
    goals = space(np.random.default_rng(1), 1000)
    for level in range(6):
        numbers = cells.find_cells(goals, level)
        assert cells.share[numbers].all()
        assert cells.share[np.unique(numbers)].sum() == pytest.approx(1.0)
        inside = (goals >= cells.low[numbers] - 0.1) & (goals <= cells.high[numbers] + 0.1)
        assert inside[np.abs(goals).max(1) < 1.5].all()
    for cell in np.unique(numbers)[:3]:
        drawn = cells.draw_values_in_cell(int(cell), 20, space, np.random.default_rng(2))
        assert (cells.find_cells(drawn, cells.level_of_cell(int(cell))) == cell).all()


def test_equal_goals_are_one_cell() -> None:
    cells = CellTree(np.ones((100, 3)), 4)
    assert not cells.can_be_split(1)
    assert (cells.find_cells(np.ones((5, 3)), 4) == 1).all()
    found = Certifier(CLAIM, lambda rng, n: np.ones((n, 3)), 0).run(lambda goals, _: np.ones(len(goals), bool))
    assert [(cell.verdict, cell.share) for cell in found.cells] == [(Verdict.CERTIFIED, 1.0)]
    assert found.rollouts == found.cells[0].rollouts


# --- verdicts ---


def test_all_cells_are_decided_and_the_boundary_is_found() -> None:
    found = certified(CLAIM, lambda goals: np.where(goals.sum(1) < 0.3, 0.97, 0.3), 0)
    assert (found.status, found.status.exit_code) == (Status.DECIDED, 1)
    assert found.count("open") == 0
    assert sum(cell.share for cell in found.cells) == pytest.approx(1.0)
    assert 0.45 < found.share("certified") < 0.64  # 0.64 of the goals are easy
    assert found.cell([-1.0, -1.0]).verdict is Verdict.CERTIFIED
    assert found.cell([0.9, 0.9]).verdict is Verdict.REFUTED
    for cell in found.cells:
        assert cell.at_least <= cell.successes / cell.rollouts <= cell.at_most
        certain = cell.at_least >= CLAIM.success - CLAIM.slack
        assert certain == (cell.verdict is Verdict.CERTIFIED)


def test_uniformly_good_policy_needs_few_cells_and_bad_policy_is_refuted() -> None:
    good, bad = certified(CLAIM, flat(1.0), 0), certified(CLAIM, flat(0.0), 0)
    assert (len(good.cells), good.status, good.status.exit_code) == (8, Status.CERTIFIED, 0)
    assert bad.status is Status.DECIDED
    assert bad.share("refuted") == pytest.approx(1.0)
    assert bad.rollouts < 16 * 20


def test_episode_limit_and_observer_leave_cells_open() -> None:
    capped = certified(Claim(10, slack=0.0, rollouts=2000), flat(0.9), 0)
    assert (capped.status, capped.status.exit_code) == (Status.BUDGET, 3)
    assert capped.count("open") > 0
    assert capped.rollouts <= 2000
    coins = np.random.default_rng(0)
    flips = lambda goals, _: coins.random(len(goals)) < 0.5  # noqa: E731
    stopped = Certifier(CLAIM, square, 0).run(flips, lambda cells, n: n < 200)
    assert stopped.status is Status.INTERRUPTED


def shares_of_delta(claim: Claim) -> float:
    return sum(2**level * claim.cell_alpha(level) for level in range(claim.first_level, claim.halvings + 1))


@pytest.mark.parametrize("halvings", [0, 2, 6])
def test_all_cells_share_delta(halvings: int) -> None:
    assert shares_of_delta(Claim(10, halvings=halvings)) == pytest.approx(0.05)


def failures(runs: int) -> Iterator[int]:
    """Count certificates with a false verdict if every cell is just below or just above the bound, or a slope."""
    return (counted(name, runs)["wrong"] for name in list(POLICIES)[:3])


def test_false_verdicts_are_rare() -> None:
    assert max(failures(6)) <= 3  # more has probability 0.004 if one in ten is false


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_at_most_delta_of_300_certificates_have_a_false_verdict(name: str) -> None:
    found = counted(name, 300)
    assert found["open"] == 0
    assert found["wrong"] <= 30


def test_weaker_bounds_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed-sample intervals of one cell, checked repeatedly in all cells, give too many false verdicts."""

    def once(successes: int, trials: int, q: float, alpha: float) -> bool:
        return trials > 0 and clopper_pearson_interval(successes, trials, 1.0 - 2.0 * CLAIM.delta)[0] > q

    monkeypatch.setattr(certificates, "rejects_at_most", once)
    assert any(wrong > 3 for wrong in failures(6))


def test_certificate_of_a_controller_on_the_point_mass() -> None:
    from adagoal.deep.pointmass import PointMass

    env = PointMass()
    assert (env.threshold, env.wall) == (0.1, 1.5)
    env.reset(seed=0)
    env._state[:] = [0.3, -0.2, 0.0, 0.0]
    seen, *_ = env.step(np.array([1.0, -1.0]))
    np.testing.assert_allclose(seen["observation"], [0.4, -0.3, 0.1, -0.1])


# --- bets ---


def test_probability_below_the_bound_is_refuted() -> None:
    assert not confidence_bounds.rejects_at_most(0, 50, 0.1, 0.05)
    assert not confidence_bounds.rejects_at_most(9, 10, 0.9, 0.05)
    assert confidence_bounds.rejects_at_most(100, 100, 0.9, 0.05)
    low = confidence_bounds.lower_confidence_bound(90, 100, 0.05)
    assert 0.75 < low < 0.9
    assert confidence_bounds.rejects_at_most(90, 100, low - 1e-6, 0.05)
    assert not confidence_bounds.rejects_at_most(90, 100, low + 1e-6, 0.05)


# --- the picture ---


def test_figure_of_three_coordinates_aggregates_the_third() -> None:
    def cell(verdict: Verdict, x: float, z: tuple[float, float]) -> CellVerdict:
        return CellVerdict(verdict, np.array([x, 0.0, z[0]]), np.array([x + 1.0, 1.0, z[1]]), 0.25, 9, 9, 0, 0.0, 1.0)

    near = [cell(Verdict.CERTIFIED, 0.0, (0.0, 3.0)), cell(Verdict.REFUTED, 0.0, (3.0, 4.0))]
    share, extent = verdict_share_map([*near, cell(Verdict.REFUTED, 1.0, (0.0, 4.0))], "certified", 0, 1)
    assert extent == (0.0, 2.0, 0.0, 1.0)
    np.testing.assert_allclose(share[:50], 0.75)
    np.testing.assert_allclose(share[50:], 0.0)


# --- the command ---


def prints(folder: Path) -> dict[str, str]:
    """Return hashes of all files of a folder except those that the command writes."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stem != "certificate"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_command_writes_its_files_and_changes_nothing_else(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = prints(finished)
    words = ["certify", str(finished), "--radius", "5", "--halvings", "3", "--workers", "2"]
    assert run_command_line([*words, "--json"]) == 1  # an untrained policy
    shown = json.loads(capsys.readouterr().out)
    text = (finished / "certificate.json").read_text()
    assert json.loads(text) == shown
    assert (finished / "certificate.png").stat().st_size > 5000
    assert prints(finished) == before
    assert run_command_line([*words[:-1], "1"]) == 1
    assert (finished / "certificate.json").read_text() == text  # also with another number of workers
    said = capsys.readouterr().out
    assert "every cell is decided and some are refuted after" in said
    assert shown["status"] == "decided"
    assert shown["statement"] in said
    same = adagoal.certify(finished, radius=5, halvings=3)
    assert same.to_dict() == shown
    assert shown["shares"]["refuted"] > 0.5
    assert (shown["about"]["env"], shown["about"]["steps"]) == ("point-mass", 40)


def test_goals_that_split_cells_are_not_played() -> None:
    drawn: list[Floats] = []

    def space(rng: np.random.Generator, n: int) -> Floats:
        drawn.append(rng.uniform(size=(n, 1)))
        return drawn[-1]

    def reach(goals: Floats, round_: int) -> Bools:
        played.append(goals)
        return np.ones(len(goals), bool)

    played: list[Floats] = []
    Certifier(Claim(radius=5, halvings=0, rollouts=200), space, 0).run(reach)
    assert len(played) > 0
    assert len(drawn[0]) == SPLIT_SAMPLE_SIZE
    assert not np.isin(np.concatenate(played), drawn[0]).any()


def test_rollouts_equal_a_manual_loop(finished: Path) -> None:
    policy, source, seed = load_policy(finished), EnvSource.from_argument("point-mass"), 3
    env = GoalEnv(source, measure_dimensions(source.make_env(), source, 0))
    goals = np.random.default_rng(0).uniform(-0.6, 0.6, (48, 2))
    _, make, _ = prepare_certification(policy, source, 0, "env", 25, seed)
    with open_players(make, 2) as reach:
        found = reach(goals, 7)
    assert 0 < found.sum() < 48
    for i in (0, 17, 47):
        block, slot = divmod(i, 16)
        rng = random_stream(seed, StreamPurpose.CERTIFIED_EPISODE, 7, slot, block)
        observation, achieved = env.reset(int(rng.integers(2**31)))
        env.set_goal(goals[i])
        inside = []
        for _ in range(25):
            observation, achieved, _ = env.step(policy(observation, goals[i]).astype(np.float64))
            inside.append(np.linalg.norm(achieved - goals[i]) <= 0.1)
        assert found[i] == any(inside)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--radius", "6"], "--radius: must be a whole number in 1..5, the steps of an episode"),
        (["--radius", "5", "--success", "1.5"], "--success: must be a number in (0, 1]"),
        (["--radius", "5", "--delta", "0"], "--delta"),
        (["--radius", "5", "--delta", "5e-324"], "--delta: must be a number in [1e-300, 1)"),
        (["--radius", "5", "--slack", "0.9"], "--slack"),
        (["--radius", "5", "--slack", "0"], "--rollouts: missing; with slack 0"),
        (["--radius", "5", "--slack", "1e-9"], "--slack"),
        (["--radius", "5", "--halvings", "13"], "--halvings"),
        (["--radius", "5", "--run", "1"], "--run: must be a whole number in 0..0, got 1"),
    ],
)
def test_bad_input_gives_one_line_error(
    finished: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["certify", str(finished), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_the_radius_is_that_of_the_episodes(finished: Path) -> None:
    assert adagoal.certify(finished, halvings=0, workers=1).claim.radius == 5

    policy = load_policy(finished)
    assert adagoal.certify(policy, PointMass, radius=3, halvings=0, workers=1).claim.radius == 3
    with pytest.raises(InputError, match=r"^radius: .* has no time limit of its own; give 1 to"):
        adagoal.certify(policy, PointMass)
    # the run had five steps, but this environment ends its episodes earlier
    with pytest.raises(InputError, match=r"^radius: must be a whole number in 1..4, the steps of an episode, got 5$"):
        adagoal.certify(policy, lambda: TimeLimit(PointMass(), 4), radius=5)


def test_observer_error_is_reported_as_user_error(finished: Path) -> None:
    def angry(open_cells: int, played: int) -> None:
        raise RuntimeError("no")

    with pytest.raises(InputError, match=r"^observe: the function raised RuntimeError: no"):
        adagoal.certify(finished, radius=5, observe=angry)


def test_user_goals_and_a_policy_without_folder(finished: Path) -> None:
    policy = load_policy(finished)
    box = adagoal.certify(finished, radius=5, halvings=2, goals="-0.2:0.2,-0.1:0.1", workers=1)
    assert {tuple(cell.low) for cell in box.cells} == {(-0.2, -0.1), (-0.2, 0.0), (0.0, -0.1), (0.0, 0.0)}
    same = adagoal.certify(policy, "point-mass", radius=5, halvings=2, goals=([-0.2, -0.1], [0.2, 0.1]), workers=1)
    assert [cell.to_dict() for cell in same.cells] == [cell.to_dict() for cell in box.cells]
    for wrong, name in (({"starts": {"x": (0, 1)}}, "starts"), ({"goals": "0:1"}, "goals")):
        with pytest.raises(InputError, match=f"^{name}: "):
            adagoal.certify(finished, radius=5, **wrong)
