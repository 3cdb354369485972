"""Can the quest of a text adventure be won, and in how many commands? TextWorld lists the admissible commands.

pip install . matplotlib textworld==1.7.0
python examples/gallery/text_quest.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import textworld
from gallery_run import run_example

IDLE = ("examine", "look", "inventory")
"""Commands that begin like this describe the world and do not change it."""


def make_game(folder: str) -> str:
    """Generate a game of two rooms with seed 2 and return its file."""
    options = textworld.GameOptions()
    options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = 2, 2, 3, 3
    options.path = str(Path(folder) / "game.z8")
    return str(textworld.make(options)[0])


class TextGame(gymnasium.Env[str, int]):
    """A game of TextWorld. The state is the list of all facts; commands that are not admissible are masked."""

    def __init__(self, file: str) -> None:
        infos = textworld.EnvInfos(admissible_commands=True, facts=True, won=True, lost=True, possible_commands=True)
        self.game = textworld.start(file, infos)
        commands = self.game.reset().possible_commands
        self.commands = [command for command in commands if not command.startswith(IDLE)]
        self.action_space = gymnasium.spaces.Discrete(len(self.commands))
        self.observation_space = gymnasium.spaces.Text(100_000)

    def observe(self, state: Any) -> tuple[str, dict[str, Any]]:
        """Return the facts as one text, and the mask."""
        facts = sorted(str(fact) for fact in state.facts)
        mask = np.isin(self.commands, state.admissible_commands).astype(np.int8)
        return "; ".join(facts + ["won"] * bool(state.won)), {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Start the game again."""
        super().reset(seed=seed)
        return self.observe(self.game.reset())

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Send a command."""
        state, reward, done = self.game.step(self.commands[action])
        observation, info = self.observe(state)
        return observation, float(reward), bool(done), False, info


GOALS = {
    "in the bedchamber": lambda facts: "at(P, bedchamber: r)" in facts,
    "key in hand": lambda facts: "in(latchkey: k, I)" in facts,
    "key in the closed basket": lambda facts: "in(latchkey: k, basket: c)" in facts and "closed(basket: c)" in facts,
    "game won": lambda facts: facts.endswith("won"),
    "box open": lambda facts: "open(box: c)" in facts,
}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        env = TextGame(make_game(folder))
        run_example(env, "text-quest", "TextWorld: two rooms, a key and a box", 6, goals=GOALS)
