"""An environment that fails while a file is there: ``tired:Tired-v0``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium

from adagoal.deep.pointmass import PointMass


class Tired(PointMass):
    """Raises while the file named by TIRED exists."""

    def step(self, action: Any) -> Any:
        if Path(os.environ["TIRED"]).exists():
            raise RuntimeError("no more")
        return super().step(action)


gymnasium.register(id="Tired-v0", entry_point=Tired, max_episode_steps=25)
