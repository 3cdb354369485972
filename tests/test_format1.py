"""Folders from before there were manifests are read, and upgraded when their run goes on.

``format1/words`` is a run of the first version; the others are of a later one, before the manifests.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import adagoal
from adagoal.runs.manifest import NAME
from adagoal.runs.saved import DATA
from adagoal.worlds import toys
from model_env import PairEnv

FORMAT_1 = Path(__file__).parent / "format1"


@pytest.mark.parametrize("name", ["auto", "pairs"])
def test_a_folder_of_format_1_is_read_and_upgraded(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FORMAT_1 / name, tmp_path / name)
    env = PairEnv(toys.chain(n_states=4, slip=0.1), (0, 2)) if name == "pairs" else None
    old = adagoal.load(folder)
    assert adagoal.play(folder, episodes=1, env=env)
    assert not (folder / NAME).exists(), "reading changes nothing"
    new = adagoal.resume(folder, old.steps + 500, env=env)
    assert new.steps > old.steps
    assert sorted(os.listdir(folder)) == [DATA, "manifest.backup.json", NAME, "model.npz", "result.json", "view.json"]
    assert adagoal.load(folder).to_dict() == new.to_dict()


@pytest.mark.parametrize("line", ["", "a reset led to another state; certificates of this run may be wrong"])
def test_a_gymnasium_run_of_the_first_version_goes_on(line: str, tmp_path: Path) -> None:
    """Its checkpoint holds warnings and nothing of the sanity checks."""
    folder = shutil.copytree(FORMAT_1 / "words", tmp_path / "words")
    with np.load(folder / "checkpoint.npz") as stored:
        arrays = dict(stored)
    facts = json.loads(arrays["__facts__"].tobytes())
    facts["world"]["warnings"] = [line] if line else []
    np.savez(folder / "checkpoint.npz", **{**arrays, "__facts__": np.frombuffer(json.dumps(facts).encode(), np.uint8)})
    new = adagoal.resume(folder, 600, trust=True)
    assert (new.steps, new.label(3)) == (600, "[bold]b")
    assert any("the sanity checks began anew" in said for said in new.warnings)
    assert new.void == (["a reset led to another state"] if line else [])
