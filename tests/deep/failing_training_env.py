"""An environment that fails while a file exists: ``failing_training_env:Failing-v0``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium

from adagoal.deep.pointmass import PointMass


class Failing(PointMass):
    """Raises while the file named by FAILING_FILE exists; hangs if the file is not empty."""

    def step(self, action: Any) -> Any:
        marker = Path(os.environ["FAILING_FILE"])
        if marker.exists():
            if marker.read_text():
                time.sleep(600)
            raise RuntimeError("no more")
        return super().step(action)


gymnasium.register(id="Failing-v0", entry_point=Failing, max_episode_steps=25)
