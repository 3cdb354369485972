"""Training until certified: the cells that count, and training in pieces."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from small_training import CONFIG, SETTINGS

import adagoal
from adagoal import resume, train
from adagoal.api import certified_training
from adagoal.certification.certificate import CellVerdict, Certification, Claim, Verdict
from adagoal.cli.main import run_command_line
from adagoal.core.errors import InputError, Status
from adagoal.deep.env_inspection import inspect_env
from adagoal.deep.goal_envs import EnvSource
from adagoal.deep.pointmass import PointMass
from adagoal.report import training_page as report


def cell(low: list[float], high: list[float]) -> CellVerdict:
    return CellVerdict(Verdict.OPEN, np.array(low), np.array(high), 0.1, 0, 0, 0, 0.0, 1.0)


def test_reachable_cells_are_chosen_by_their_distances() -> None:
    near, far = cell([-2.0, -2.0, 0.0], [1.0, 2.0, 0.4]), cell([1.0, -2.0, 0.0], [2.0, 2.0, 0.4])
    high, empty = cell([-2.0, -2.0, 0.4], [2.0, 2.0, 0.9]), cell([-2.0, -2.0, 0.9], [2.0, 2.0, 1.0])
    found = Certification(Status.DECIDED, Claim(10), [near, far, high, empty], 0)
    drawn = np.random.default_rng(0).uniform([-2.0, -2.0, 0.0], [2.0, 2.0, 0.9], (500, 3))
    beyond = np.abs(drawn[:, 0]) > 1.0
    assert certified_training.cells_believed_reachable(found, drawn, np.where(beyond, 20.0, 5.0), 10.0) == [
        near,
        high,
        empty,
    ]
    in_the_air = drawn[:, 2] > 0.4  # a coordinate after the first two counts as much
    assert certified_training.cells_believed_reachable(found, drawn, np.where(in_the_air, 20.0, 5.0), 10.0) == [
        near,
        far,
        empty,
    ]


@pytest.mark.parametrize("rule", ["adagoal", "unigoal"])
def test_cells_are_chosen_by_the_distances_of_the_policy(rule: str) -> None:
    trained = train([dataclasses.replace(CONFIG, goal_rule=rule)], workers=1)
    sizes, (space,), _ = inspect_env(trained.source, 5, [("test_goals", "env")])
    starts, drawn = certified_training._sample_starts_and_goals(trained.source, sizes, space, 3)
    assert (starts.shape, drawn.shape) == (
        (certified_training.N_JUDGED_GOALS, 4),
        (certified_training.N_JUDGED_GOALS, 2),
    )
    assert len(np.unique(starts, axis=0)) == certified_training.N_JUDGED_GOALS
    D = certified_training._estimate_distances(trained.policy, starts, drawn)
    if rule == "unigoal":
        assert (D == 0.0).all(), "without critics nothing is believed out of reach"
    else:
        for i in (0, 100, 1000):
            assert D[i] == pytest.approx(trained.policy.distance(starts[i], drawn[i]), rel=1e-4)


def test_training_in_pieces_equals_training_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certified_training, "MAX_CERTIFICATION_ATTEMPTS", 2)
    ended = certified_training.train_until_certified(CONFIG, tmp_path / "pieces", workers=1)
    assert ended.status == "budget"  # nothing was learnt in so few steps
    assert ended.certificate is not None
    assert ended.certificate.claim.delta == pytest.approx(0.05 / 6)
    assert ended.certificate.count("open") == 0
    train([dataclasses.replace(CONFIG)], out=tmp_path / "whole", workers=1)
    assert (tmp_path / "pieces" / "policy.npz").read_bytes() == (tmp_path / "whole" / "policy.npz").read_bytes()


def test_a_shorter_time_limit_of_the_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certified_training, "MAX_CERTIFICATION_ATTEMPTS", 1)
    source = EnvSource.from_argument(lambda: TimeLimit(PointMass(), 3))
    config = dataclasses.replace(CONFIG, env=source.name)
    ended = certified_training.train_until_certified(config, tmp_path / "run", source, workers=1)
    assert ended.certificate is not None
    assert ended.certificate.claim.radius == 3


@pytest.mark.parametrize("when", ["training", "certifying", "certified"])
def test_folder_records_the_end_and_training_can_continue(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certified_training, "MAX_CERTIFICATION_ATTEMPTS", 2)
    monkeypatch.setattr(certified_training, "cells_believed_reachable", lambda found, *_: found.cells)
    verdict, status = (Verdict.CERTIFIED, "certified") if when == "certified" else (Verdict.OPEN, "interrupted")
    found = Certification(Status(status), Claim(5), [dataclasses.replace(cell([-1.0], [1.0]), verdict=verdict)], 16)
    monkeypatch.setattr(certified_training, "certify", lambda *_, **__: found)
    folder, observe = tmp_path / "run", (lambda history: False) if when == "training" else None
    ended = certified_training.train_until_certified(CONFIG, folder, workers=1, observe=observe)
    assert ended.status == json.loads((folder / "result.json").read_text())["status"] == status
    assert ended.curve()[-1]["steps"] == (0 if when == "training" else 20)
    assert ended.certificate is (None if when == "training" else found)
    report.write_training_report(folder)
    on = resume(folder, workers=1)
    assert (on.status, on.curve()[-1]["steps"]) == ("done", 40)


def test_incompatible_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "point-mass", "--out", str(tmp_path / "run")]
    assert run_command_line([*words, "--slack", "0.1"]) == 2
    assert "--slack: works only in training until certified" in capsys.readouterr().err
    assert run_command_line([*words, "--until", "certified", "--seeds", "2"]) == 2
    assert "--seeds: training until certified takes one seed" in capsys.readouterr().err
    assert run_command_line([*words, "--until", "certified", "--delta", "2"]) == 2
    assert "--delta: must be a number in [1e-300, 1)" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_python_call_with_user_rule_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certified_training, "MAX_CERTIFICATION_ATTEMPTS", 2)
    given = {**SETTINGS, "horizon": 5, "workers": 1}
    ended = adagoal.train(
        lambda: PointMass(), lambda known: known.E + 1.0, out=tmp_path / "run", until="certified", delta=0.2, **given
    )
    assert ended.status == "budget"
    assert ended.certificate is not None
    assert ended.certificate.claim.delta == pytest.approx(0.2 / 6)
    assert ended.curve()[-1]["steps"] == SETTINGS["steps"]


def test_bad_python_arguments_are_refused(tmp_path: Path) -> None:
    for wrong, name in (({"until": "bored"}, "until"), ({"until": "certified"}, "out"), ({"delta": 0.1}, "delta")):
        with pytest.raises(InputError, match=f"^{name}: "):
            adagoal.train("point-mass", **wrong)
    with pytest.raises(InputError, match=r"^seeds: .* takes one seed at a time"):
        adagoal.train("point-mass", until="certified", seeds=2, out=tmp_path)


@pytest.mark.slow
def test_point_mass_is_certified_before_the_budget_is_spent(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        "train",
        "point-mass",
        "--recipe",
        "light",
        "--hidden",
        "64,64",
        "--steps",
        "30000",
        "--until",
        "certified",
    ]
    assert run_command_line([*words, "--out", str(folder)]) == 0
    found = json.loads((folder / "certificate.json").read_text())
    assert found["shares"]["certified"] > 0.9
    assert json.loads((folder / "result.json").read_text())["steps"] == found["about"]["steps"] < 30000
