"""Normalised observations inside the networks of Stable-Baselines3, where they do not hide the goals.

    TD3("MultiInputPolicy", env, policy_kwargs={"features_extractor_class": NormalisedFeatures})

Every coordinate of the observation and of the achieved goal gets mean 0 and deviation 1, over all batches that were
learnt from; the desired goal is scaled as the achieved one, so that goals far beyond what was achieved do not squeeze
the rest together. This is the normaliser of the deep world of this package (:mod:`adagoal.deep.normaliser`).
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

MIN_DEVIATION, MAX_NORMALISED_VALUE = 0.01, 5.0
"""Of the deviation, and of what is handed on."""


class NormalisedFeatures(BaseFeaturesExtractor):
    """(observation, achieved goal, desired goal), flattened, normalised and concatenated."""

    def __init__(self, observation_space: spaces.Dict) -> None:
        seen, goal = (spaces.flatdim(observation_space[key]) for key in ("observation", "achieved_goal"))
        super().__init__(observation_space, seen + 2 * goal)
        # Stable-Baselines3 copies what is called running_ into the target networks after every update.
        self.register_buffer("running_weight", torch.zeros(()))
        self.register_buffer("running_mean", torch.zeros(seen + goal))
        self.register_buffer("running_squares", torch.zeros(seen + goal))

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Features ``[B, O + 2 G]``; the moments take in a batch that is learnt from."""
        flat = {key: value.flatten(1) for key, value in observations.items()}
        known = torch.cat([flat["observation"], flat["achieved_goal"]], 1)
        if self.training:
            with torch.no_grad():
                self._merge_batch_moments(known)
        mean, scale = self._mean_and_deviation()
        goal = flat["desired_goal"].shape[1]
        desired = (flat["desired_goal"] - mean[-goal:]) / scale[-goal:]
        return torch.cat([(known - mean) / scale, desired], 1).clamp(-MAX_NORMALISED_VALUE, MAX_NORMALISED_VALUE)

    def _merge_batch_moments(self, batch: torch.Tensor) -> None:
        """Merge the moments of a batch ``[B, O + G]`` (Chan et al.)."""
        moments: Any = self
        new, old = float(len(batch)), moments.running_weight
        mean = batch.mean(0)
        shift, both = mean - moments.running_mean, old + new
        moments.running_squares += ((batch - mean) ** 2).sum(0) + shift**2 * old * new / both
        moments.running_mean += shift * new / both
        moments.running_weight += new

    def _mean_and_deviation(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation ``[O + G]``; 0 and 1 before the first batch."""
        moments: Any = self
        deviation = (moments.running_squares / moments.running_weight.clamp(min=1.0)).sqrt().clamp(min=MIN_DEVIATION)
        scale = torch.where(moments.running_weight > 0, deviation, torch.ones_like(deviation))
        return moments.running_mean, scale
