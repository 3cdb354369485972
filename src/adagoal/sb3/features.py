"""Features extractor for Stable-Baselines3 policies: normalises observations and goals inside the networks."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from adagoal.deep.value_formulas import MAX_NORMALISED_VALUE, MIN_DEVIATION, moment_shifts


class NormalisedFeatures(BaseFeaturesExtractor):
    """Observation, achieved goal and desired goal, flattened, normalised and concatenated.

        TD3("MultiInputPolicy", env, policy_kwargs={"features_extractor_class": NormalisedFeatures})

    Observations and achieved goals get mean 0 and deviation 1 over all batches that were learnt from. The desired goal
    is scaled as the achieved one; otherwise goals far beyond what was achieved would squeeze the others together. This
    is the normaliser of :mod:`adagoal.deep.networks`. VecNormalize would also change the goals that hindsight and goal
    rules read.
    """

    def __init__(self, observation_space: spaces.Dict) -> None:
        observation, goal = (spaces.flatdim(observation_space[key]) for key in ("observation", "achieved_goal"))
        super().__init__(observation_space, observation + 2 * goal)
        # Stable-Baselines3 copies buffers named running_ into the target networks after every update
        self.register_buffer("running_weight", torch.zeros(()))
        self.register_buffer("running_mean", torch.zeros(observation + goal))
        self.register_buffer("running_squares", torch.zeros(observation + goal))

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Features ``[B, O + 2 G]``; in training mode the moments take in the batch."""
        flat = {key: value.flatten(1) for key, value in observations.items()}
        known = torch.cat([flat["observation"], flat["achieved_goal"]], 1)
        if self.training:
            with torch.no_grad():
                self._merge_batch_moments(known)
        moments: Any = self
        mean, weight = moments.running_mean, moments.running_weight
        deviation = (moments.running_squares / weight.clamp(min=1.0)).sqrt().clamp(min=MIN_DEVIATION)
        scale = torch.where(weight > 0, deviation, torch.ones_like(deviation))
        goal = flat["desired_goal"].shape[1]
        desired = (flat["desired_goal"] - mean[-goal:]) / scale[-goal:]
        return torch.cat([(known - mean) / scale, desired], 1).clamp(-MAX_NORMALISED_VALUE, MAX_NORMALISED_VALUE)

    def _merge_batch_moments(self, batch: Tensor) -> None:
        moments: Any = self
        added, weight, mean = float(len(batch)), moments.running_weight, batch.mean(0)
        mean_shift, squares_shift = moment_shifts(mean - moments.running_mean, weight, added, weight + added)
        moments.running_squares += ((batch - mean) ** 2).sum(0) + squares_shift
        moments.running_mean += mean_shift
        moments.running_weight += added
