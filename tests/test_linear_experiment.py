"""The linear experiment in small."""

import json

import pytest
from click.testing import CliRunner

from adagoal.experiments import linear as experiment


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(experiment, "SHAPES", ("5x5", "4x4x4"))
    monkeypatch.setattr(experiment, "KERNELS", (2, 3))
    monkeypatch.setattr(experiment, "PROFILE", (2, 1))
    monkeypatch.setattr(experiment, "RADIUS", 5.0)


@pytest.mark.parametrize("part", ["states", "kernels"])
def test_parts(small, part, tmp_path):
    done = CliRunner().invoke(experiment.linear, ["--part", part, "--seeds", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / f"linear-{part}.json").read_text())
    assert {row["status"] for row in data["rows"]} == {"certified"}
    assert all(row["audit"] for row in data["rows"])
    assert (tmp_path / f"linear-{part}.png").stat().st_size > 0
    assert "audit ok" in done.output
