"""How many inputs until a faulty MQTT broker gives each of its answers? A benchmark model of AALpy.

pip install . matplotlib aalpy==2.0.0
python examples/gallery/protocol_model.py
"""

from __future__ import annotations

import random
from typing import Any

import gymnasium
from aalpy.utils.BenchmarkSULs import get_faulty_mqtt_SMM
from gallery_run import run_example


class Machine(gymnasium.Env[str, int]):
    """A stochastic Mealy machine; a state is that of the machine with its last output."""

    def __init__(self, model: Any) -> None:
        self.model, self.inputs = model, sorted(model.get_input_alphabet())
        self.action_space = gymnasium.spaces.Discrete(len(self.inputs))
        self.observation_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Start again in the initial state."""
        super().reset(seed=seed)
        if seed is not None:
            random.seed(seed)  # AALpy draws from Python's global generator
        self.model.reset_to_initial()
        return f"{self.model.current_state.state_id} nothing", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Send an input."""
        output = self.model.step(self.inputs[action])
        return f"{self.model.current_state.state_id} {output}", 0.0, False, False, {}


def last_output(observation: str) -> str:
    """Return the goal of a state: the output that led to it."""
    return observation.split()[1]


if __name__ == "__main__":
    title = "AALpy's faulty MQTT broker: expected inputs until an answer"
    run_example(Machine(get_faulty_mqtt_SMM()), "protocol", title, 6, epsilon=0.5, goals=last_output)
