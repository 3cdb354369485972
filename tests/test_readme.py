"""The numbers in the README and on the first pages equal those of the named run."""

from __future__ import annotations

from pathlib import Path

import pytest

import adagoal

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def demo() -> adagoal.Result:
    return adagoal.explore("two-room", radius=40, epsilon=1.0, delta=0.1, seed=0)


def test_readme_shows_the_certificate_of_its_run(demo: adagoal.Result) -> None:
    text = (ROOT / "README.md").read_text()
    lower, upper = demo.certificate(23)
    assert demo.status == "certified"
    assert f"Certificate(lower={lower:.1f}, upper={upper:.1f})" in text
    assert f"No policy reaches goal 23 in fewer than {lower:.1f} steps" in text
    assert f"needs at most {upper:.1f} steps" in text
    assert f'result.label(23)  # "{demo.label(23)}"' in text


def test_first_page_counts_the_cells_of_its_run(demo: adagoal.Result) -> None:
    assert f"{len(demo.goals)} of the 52 cells are certified" in (ROOT / "docs/index.md").read_text()
    assert len(demo.certificates) == 52
