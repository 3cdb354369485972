"""The examples of the documents run as they stand, with fewer steps and smaller batches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
SMALLER = {
    "n_envs=16": "n_envs=2",
    "learning_starts=1600": "learning_starts=100",
    "batch_size=1024": "batch_size=32",
    "gradient_steps=400": "gradient_steps=2",
    "learn(144_000": "learn(300",
}


@pytest.mark.filterwarnings("ignore")  # those of the environments
@pytest.mark.parametrize("page", ["README.md", "docs/sb3.md"])
def test_an_example_runs(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    (code,) = (block for block in blocks if "EnsembleTD3" in block)
    for old, new in SMALLER.items():
        assert old in code
        code = code.replace(old, new)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["model"].num_timesteps >= 300
    assert found["model"]._n_updates > 0
