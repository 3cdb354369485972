"""Train SAC with hindsight on FetchReach and save it: python train_reach.py reach.zip"""

from __future__ import annotations

import sys

import gymnasium
import gymnasium_robotics
import torch
from stable_baselines3 import SAC, HerReplayBuffer

if __name__ == "__main__":
    gymnasium.register_envs(gymnasium_robotics)
    torch.set_num_threads(1)
    model = SAC(
        "MultiInputPolicy",
        "FetchReach-v4",
        seed=1,
        replay_buffer_class=HerReplayBuffer,
        learning_starts=1_000,
        learning_rate=1e-3,
        gamma=0.95,
        buffer_size=50_000,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
        verbose=1,
    )
    model.learn(10_000).save(sys.argv[1])
