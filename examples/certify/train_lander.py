"""Train PPO of Stable-Baselines3 on LunarLander without wind and save it: python train_lander.py lander.zip"""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("LunarLander-v3", 16, seed=0),
        n_steps=1024,
        batch_size=256,
        n_epochs=4,
        learning_rate=1e-3,
        gamma=0.999,
        gae_lambda=0.98,
        ent_coef=0.01,
        seed=0,
        device="cpu",
        verbose=1,
    )
    model.learn(600_000).save(sys.argv[1])
