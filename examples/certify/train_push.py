"""Train TQC with hindsight and the rule of AdaGoal on FetchPush, and save it: python train_push.py push.zip

It needs sb3-contrib and about 45 minutes on one core. The policy then succeeds in about four of five episodes.
"""

from __future__ import annotations

import sys

import gymnasium
import gymnasium_robotics
import numpy as np
import torch
from sb3_contrib import TQC
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import ActionNoise

from adagoal.sb3 import ChooseGoals, ChosenGoal, NormalisedFeatures


class MixedNoise(ActionNoise):
    """Gaussian noise; three actions in ten are far from those of the policy."""

    def __call__(self) -> np.ndarray:
        draw = np.random  # the global generator, which Stable-Baselines3 seeds
        return draw.uniform(-2, 2, 4) if draw.random() < 0.3 else draw.normal(0, 0.2, 4)


if __name__ == "__main__":
    gymnasium.register_envs(gymnasium_robotics)
    torch.set_num_threads(1)
    model = TQC(
        "MultiInputPolicy",
        make_vec_env("FetchPush-v4", n_envs=16, seed=1, wrapper_class=ChosenGoal),
        replay_buffer_class=HerReplayBuffer,
        action_noise=MixedNoise(),
        policy_kwargs={"net_arch": [256] * 3, "n_critics": 2, "features_extractor_class": NormalisedFeatures},
        buffer_size=100_000,
        learning_starts=1600,
        learning_rate=1e-3,
        batch_size=512,
        gamma=0.95,
        tau=0.05,
        gradient_steps=4,  # for every 16 steps
        seed=1,
        device="cpu",
        verbose=1,
    )
    choose = ChooseGoals("adagoal-proportional", "scale=1", radius=lambda steps: min(10 + steps / 10_000, 40), seed=1)
    test = EvalCallback(make_vec_env("FetchPush-v4", seed=2), n_eval_episodes=40, eval_freq=500)  # every 8,000 steps
    model.learn(96_000, callback=[choose, test]).save(sys.argv[1])
