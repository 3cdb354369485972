"""Train PPO of Stable-Baselines3 on CartPole and save it: python train_cartpole.py model.zip"""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import PPO

if __name__ == "__main__":
    torch.set_num_threads(1)
    PPO("MlpPolicy", "CartPole-v1", n_steps=1024, seed=0, device="cpu").learn(100_000).save(sys.argv[1])
