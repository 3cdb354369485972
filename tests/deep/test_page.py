"""The page of a training in a real browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small import CONFIG

import browser as driver
from adagoal.core.errors import InputError
from adagoal.core.files import write_json
from adagoal.report import deep
from adagoal.report.packed import unpacked

CELL = {"low": [-1.0, -1.0], "high": [0.0, 1.0], "share": 0.5, "rollouts": 10, "reached": 9}
CELLS = [CELL | {"verdict": "certified"}, CELL | {"low": [0.0, -1.0], "high": [1.0, 1.0], "verdict": "open"}]


@pytest.fixture
def trained(finished: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(finished, tmp_path / "run")
    by = {"distance from the start": [{"from": 0.0, "to": 1.0, "episodes": 4, "success": 0.25}]}
    write_json(folder / deep.EVALUATION, {"by": by})
    write_json(folder / deep.CERTIFICATE, {"statement": "with <b>probability</b>", "cells": CELLS})
    return folder


@pytest.mark.skipif(driver.found() is None, reason=driver.HOW)
def test_the_goal_space_goes_back_in_time(trained: Path) -> None:
    deep.write(trained)
    with driver.Browser() as browser:
        page = browser.open((trained / "report.html").as_uri())
        page.wait("document.body.dataset.ready === 'yes'")
        chosen = "Math.round(part('squares').data.text.reduce((n, text) => n + parseInt(text), 0))"
        page.evaluate("$('space-measure').value = 'until'; $('space-measure').dispatchEvent(new Event('change'))")
        episodes = json.loads((trained / "result.json").read_text())["episodes"]
        assert page.evaluate(chosen) == episodes
        page.evaluate("$('cycle').value = 0; $('cycle').dispatchEvent(new Event('input'))")
        assert page.evaluate(chosen) == CONFIG.episodes
        for name in ("D", "E"):
            page.evaluate(f"$('space-measure').value = '{name}'; $('space-measure').dispatchEvent(new Event('change'))")
            assert page.evaluate("part('squares').data.x.length") == 41 * 41
        assert page.evaluate("$('cells-text').textContent") == "certified 50%, refuted 0%, open 50%"
        assert "with <b>probability</b>" in page.evaluate("document.body.textContent"), "words, not markup"
        assert page.evaluate("page.data.facts.panels.map(panel => panel.title)")[-1].startswith("Success by distance")
        assert page.troubles() == []


def test_a_training_is_watched_from_its_folder(trained: Path) -> None:
    source = deep.FolderTraining(trained)
    assert 'data-live="yes"' in source.page()
    facts, arrays = unpacked(source.block())
    assert not facts["running"]
    assert "Finished" in facts["words"]
    assert arrays["chosen"].shape[1:] == (CONFIG.episodes, 2)
    with pytest.raises(InputError, match="no goals with numbers"):
        source.policy(0)


@pytest.mark.parametrize(
    "wrong", [{"statement": "x", "cells": [CELL]}, {"cells": []}, {"statement": "x", "cells": [CELLS[0] | {"low": []}]}]
)
def test_a_damaged_certificate_is_one_line(trained: Path, wrong: object) -> None:
    write_json(trained / deep.CERTIFICATE, wrong)
    with pytest.raises(InputError, match=r"certificate.json: damaged"):
        deep.FolderTraining(trained).block()
