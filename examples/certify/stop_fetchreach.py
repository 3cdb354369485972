"""Train SAC with hindsight on FetchReach until its policy is certified: python stop_fetchreach.py SEED"""

from __future__ import annotations

import sys
import time

import gymnasium
import gymnasium_robotics
import torch
from stable_baselines3 import SAC, HerReplayBuffer

from adagoal.sb3 import StopWhenCertified

if __name__ == "__main__":
    gymnasium.register_envs(gymnasium_robotics)
    torch.set_num_threads(1)
    seed = int(sys.argv[1])
    model = SAC(
        "MultiInputPolicy",
        "FetchReach-v4",
        seed=seed,
        replay_buffer_class=HerReplayBuffer,
        learning_starts=1_000,
        learning_rate=1e-3,
        gamma=0.95,
        buffer_size=50_000,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
    )
    stop = StopWhenCertified("FetchReach-v4", every=2_000, radius=50, success=0.9, seed=1_000 * seed, verbose=1)
    model.learn(20_000, callback=stop)
    rollouts = sum(found.rollouts for found in stop.certificates)
    print(f"{model.num_timesteps} steps, {len(stop.certificates)} attempts, {rollouts} rollouts,", end=" ")
    print(f"certified: {stop.is_certified}, {time.process_time():.0f} s of processor time")
    print(stop.certificates[-1].statement)
