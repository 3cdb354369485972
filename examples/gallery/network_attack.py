"""Which hosts of a network can an attacker take, and in how many expected actions? NASim says how attacks succeed.

pip install . matplotlib nasim==0.12.0
python examples/gallery/network_attack.py tiny          # or small
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import nasim
import numpy as np
from gallery_run import run_example

RADIUS = {"tiny": 12, "small": 8}


class Network(gymnasium.Env[Any, int]):
    """A NASim scenario that shows its whole state: per host whether it is discovered and reachable, and the access."""

    def __init__(self, scenario: str) -> None:
        self.nasim = nasim.make_benchmark(scenario)
        self.hosts = list(self.nasim.scenario.host_num_map)
        self.attacks = [self.nasim.action_space.get_action(a) for a in range(self.nasim.action_space.n)]
        # Scans of services, systems and processes inform the attacker, but do not change the state.
        self.attacks = [a for a in self.attacks if a.is_subnet_scan() or not a.is_scan()]
        self.action_space = gymnasium.spaces.Discrete(len(self.attacks))
        self.observation_space = gymnasium.spaces.MultiDiscrete([2, 2, 3] * len(self.hosts))

    def observe(self) -> tuple[Any, dict[str, Any]]:
        """Return the state, and a mask: attacks on hosts that are hidden or unreachable always fail."""
        state = self.nasim.current_state
        found = {host: (state.host_discovered(host), state.host_reachable(host)) for host in self.hosts}
        rows = [(*found[host], state.get_host(host).access) for host in self.hosts]
        mask = np.array([all(found[attack.target]) for attack in self.attacks], np.int8)
        return np.array(rows, np.int64).ravel(), {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start a new attack."""
        super().reset(seed=seed)
        if seed is not None:
            np.random.seed(seed)  # noqa: NPY002  NASim draws from NumPy's global generator
        self.nasim.reset()
        return self.observe()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Attack; the episode ends when every sensitive host is taken."""
        _, reward, taken, _, _ = self.nasim.step(self.attacks[action])
        observation, info = self.observe()
        return observation, reward, taken, False, info


def access_goals(hosts: list[tuple[int, int]]) -> dict[str, Callable[[Any], bool]]:
    """Return two goals per host: access as a user, and as root."""

    def has_access(index: int, level: int) -> Callable[[Any], bool]:
        return lambda state: bool(state[3 * index + 2] >= level)

    levels = {"user": 1, "root": 2}
    return {f"{word} on {host}": has_access(i, n) for i, host in enumerate(hosts) for word, n in levels.items()}


if __name__ == "__main__":
    scenario = sys.argv[1] if len(sys.argv) > 1 else "tiny"
    env = Network(scenario)
    title = f"NASim {scenario}: access to {len(env.hosts)} hosts"
    run_example(env, f"network-{scenario}", title, RADIUS[scenario], goals=access_goals(env.hosts))
