"""Extending a training run gives the same result as a long run.

The two allocate replay buffers of different sizes, so XLA compiles two programs. They round alike with the default
flags of XLA, but not with those that the other tests use to compile faster: the Makefile runs this file without them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from small_training import CONFIG, equal

from adagoal import resume, train


def test_extended_training_equals_long_training(tmp_path: Path) -> None:
    ring = replace(CONFIG, buffer=60)  # larger than the short run, smaller than the long one
    train([ring], out=tmp_path / "longer", workers=1)
    resume(tmp_path / "longer", budget=100, workers=1)
    train([replace(ring, steps=100)], out=tmp_path / "long", workers=1)
    assert equal(tmp_path / "longer", tmp_path / "long")
    again = resume(tmp_path / "longer", budget=10, workers=1)
    assert (again.status, again.history.configs[0].steps) == ("done", 100), "no step is taken back"
