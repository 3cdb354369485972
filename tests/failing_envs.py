"""Environments that misbehave, registered by name, so another process can make them: ``failing_envs:Hangs-v0``."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import gymnasium

from adagoal.envs import toy_models
from model_env import ModelEnv

CHAIN = {"n_states": 6, "slip": 0.1}
Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Chain(ModelEnv):
    """A slippery chain that calls ``happen`` once, at step number ``after``."""

    def __init__(self, after: int = 700) -> None:
        super().__init__(toy_models.chain_model(**CHAIN))  # type: ignore[arg-type]
        self.left = after

    def step(self, action: Any) -> Step:
        self.left -= 1
        if self.left == 0:
            self.happen()
        return super().step(action)

    def happen(self) -> None:
        """Do nothing; subclasses misbehave here."""


class Hangs(Chain):
    def happen(self) -> None:
        time.sleep(1000)


class Exits(Chain):
    def happen(self) -> None:
        sys.exit(7)


class Crashes(Chain):
    def happen(self) -> None:
        os._exit(11)


class Leaves(Chain):
    """Ends its process with exit code 0."""

    def happen(self) -> None:
        os._exit(0)


class Dies(Chain):
    """Kills its own process, which looks like a kill from outside."""

    def happen(self) -> None:
        os.kill(os.getpid(), 9)


class Unmakeable(Chain):
    def __init__(self) -> None:
        sys.exit("no licence")


class Slow(Chain):
    """Hangs in its first reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(1000)
        return super().reset(seed=seed)


class Unclosable(Chain):
    def close(self) -> None:
        sys.exit("never")


class Chatty(Chain):
    """Prints in every method, through Python and through file descriptors."""

    def __init__(self) -> None:
        super().__init__()
        print("welcome")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        print("{ a reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Step:
        if self.left % 50 == 0:
            print("step")
            os.write(1, b"from C\n")
        return super().step(action)


class Named(Chain):
    """Observations that are markup for a terminal, a browser or mathtext."""

    NAMES = ("[/x]0", "$\\frac{0$", "<script>alert(1)</script>", "\u202egnp", "\x1b[31mred\x07", "[bold]a\nb")

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Text(40, charset=frozenset("".join(self.NAMES)))

    def observe(self) -> Any:
        return self.NAMES[self.state]


class OldStep(Chain):
    def step(self, action: Any) -> Any:
        state, reward, terminated, _, info = super().step(action)
        return state, reward, terminated, info


class OldReset(Chain):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class PairReset(Chain):
    """Old gym API with an observation of two numbers, which looks like (observation, info)."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, 0


class NoStep(Chain):
    def step(self, action: Any) -> Any:
        super().step(action)


class LongStep(Chain):
    def step(self, action: Any) -> Any:
        return (*super().step(action), None)


class Moves(Chain):
    """Changes the current directory when it is created and when it is stepped."""

    def __init__(self, to: str) -> None:
        super().__init__(after=50)
        self.to = to
        self.happen()

    def happen(self) -> None:
        os.chdir(self.to)


for kind in (Chain, Hangs, Exits, Crashes, Leaves, Dies, Unmakeable, Slow, Unclosable, Chatty, Named, OldStep, OldReset,
             PairReset, NoStep, LongStep, Moves):  # fmt: skip
    gymnasium.register(f"{kind.__name__}-v0", kind)
