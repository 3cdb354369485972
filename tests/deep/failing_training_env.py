"""An environment that fails while a file is there: ``failing_training_env:Tired-v0``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium

from adagoal.deep.pointmass import PointMass


class Tired(PointMass):
    """Raises while the file named by TIRED exists; hangs where that holds a word."""

    def step(self, action: Any) -> Any:
        tired = Path(os.environ["TIRED"])
        if tired.exists():
            if tired.read_text():
                time.sleep(600)
            raise RuntimeError("no more")
        return super().step(action)


gymnasium.register(id="Tired-v0", entry_point=Tired, max_episode_steps=25)
