"""TD3 with an ensemble of sober critics: the learner of :mod:`adagoal.deep.ensemble_ddpg` in Stable-Baselines3.

    model = EnsembleTD3("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, ...)

What differs from TD3, whose settings are the other ones:

    hidden layers of the critics are normalised, which keeps them sober about actions that nobody tried
    y_j = clip(r + gamma Q_j'(s', pi'(s', g), g), -1/(1 - gamma), 0)     a target of its own for each critic, no minimum
    the actor minimises -mean_j Q_j(s, pi(s, g), g) + c mean pi^2        c is ``action_penalty``
    a share ``random_actions`` of the training actions is uniform, beside the ``action_noise``

so rewards must be -1 and 0; others are refused. There is no delay of the actor and no noise in the targets. The batches
of several updates are drawn at once. On a GPU an update is recorded as a CUDA graph the first time and then only
played, since one after the other its small kernels take far longer to start than to run; the learning rate stays that
of the beginning.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.td3.policies import MultiInputPolicy
from torch import Tensor, nn
from torch.nn import functional

from adagoal.core.argument_checks import check_number
from adagoal.sb3.goal_wrapper import check_sparse_rewards

MAX_BATCHES_AT_ONCE = 50
"""Updates whose batches are drawn at once, at most."""
N_WARMUP_UPDATES = 3
"""Updates before one is recorded, so that everything is allocated."""

TensorBatch = dict[str, Tensor]
"""``action``, ``reward``, ``done``, and ``now.NAME`` and ``next.NAME`` for each part of observations: ``[B, ...]``"""


class EnsembleCritic(ContinuousCritic):
    """J critics in one: weights ``[J, in, out]``, normalised hidden layers."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        names = [f"qf{i}" for i in range(self.n_critics)]
        singles = [[layer for layer in getattr(self, name) if isinstance(layer, nn.Linear)] for name in names]
        for name in names:
            delattr(self, name)
        self.q_networks: list[Any] = []
        layers = list(zip(*singles, strict=True))
        self.weights = nn.ParameterList(torch.stack([one.weight.T for one in same]) for same in layers)
        self.biases = nn.ParameterList(torch.stack([one.bias for one in same])[:, None] for same in layers)

    def q_values(self, observations: Any, actions: Tensor) -> Tensor:
        """``[J, B, 1]``"""
        features = self.extract_features(observations, self.features_extractor)
        x = torch.cat([features, actions], 1).expand(self.n_critics, -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = self.hidden_activation(torch.baddbmm(bias, x, weight))
        return torch.baddbmm(self.biases[-1], x, self.weights[-1])

    def hidden_activation(self, x: Tensor) -> Tensor:
        """Between the layers."""
        return functional.relu(functional.layer_norm(x, x.shape[-1:]))

    def forward(self, obs: Any, actions: Tensor) -> tuple[Tensor, ...]:
        """The values of each critic ``[B, 1]``."""
        return tuple(self.q_values(obs, actions))

    def q1_forward(self, obs: Any, actions: Tensor) -> Tensor:
        """Their mean ``[B, 1]``: what an actor is to climb."""
        return self.q_values(obs, actions).mean(0)


class EnsemblePolicy(MultiInputPolicy):
    """Three critics and normalised features, unless the ``policy_kwargs`` say otherwise."""

    critic_class: ClassVar[type[EnsembleCritic]] = EnsembleCritic

    def __init__(self, *given: Any, **named: Any) -> None:
        own = {"n_critics": 3, "net_arch": [256, 256, 256], "features_extractor_class": NormalisedFeatures}
        super().__init__(*given, **own | named)

    def make_critic(self, features_extractor: Any = None) -> EnsembleCritic:
        """An ensemble."""
        critic = self.critic_class(**self._update_features_extractor(self.critic_kwargs, features_extractor))
        critic.to(self.device)
        return critic


class EnsembleTD3(TD3):
    """See the text of this module."""

    policy_aliases: ClassVar[dict[str, Any]] = {"MultiInputPolicy": EnsemblePolicy}

    def __init__(
        self, policy: Any, env: Any, *given: Any, action_penalty: float = 1.0, random_actions: float = 0.3, **named: Any
    ) -> None:
        check_number("action_penalty", action_penalty, 0.0, math.inf, closed="[)")
        check_number("random_actions", random_actions, 0.0, 1.0)
        check_number("gamma", named.get("gamma", 0.99), 0.0, 1.0, closed="[)")
        self.action_penalty, self.random_actions = action_penalty, random_actions
        self._recorded: tuple[Any, TensorBatch, Tensor] | None = None
        super().__init__(policy, env, *given, **named)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """So many updates of batches of this size."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        self._place_optimizers()
        losses: list[Tensor] = []
        for first in range(0, gradient_steps, MAX_BATCHES_AT_ONCE):
            count = min(MAX_BATCHES_AT_ONCE, gradient_steps - first)
            drawn = self._sample_batch(count * batch_size)
            # the relabelled ones are the last: every batch gets its share
            batches = ({name: values[i::count] for name, values in drawn.items()} for i in range(count))
            losses += [self._learn_from_batch(batch) for batch in batches]
        self._n_updates += gradient_steps
        actor_loss, critic_loss = torch.stack(losses).mean(0).tolist()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/actor_loss", actor_loss)
        self.logger.record("train/critic_loss", critic_loss)

    def _sample_batch(self, count: int) -> TensorBatch:
        """So many transitions."""
        assert self.replay_buffer is not None
        found: Any = self.replay_buffer.sample(count, env=self._vec_normalize_env)
        parts = {"action": found.actions, "reward": found.rewards, "done": found.dones}
        parts |= {f"now.{name}": values for name, values in found.observations.items()}
        return parts | {f"next.{name}": values for name, values in found.next_observations.items()}

    def _learn_from_batch(self, batch: TensorBatch) -> Tensor:
        """One update; on a GPU it is recorded first, and played from then on. Returns the losses ``[2]``.

        Batches of another size are recorded anew.
        """
        if self.device.type != "cuda":
            return self._update_networks(batch)
        if self._recorded is None or len(self._recorded[1]["action"]) != len(batch["action"]):
            self._recorded = self._record_cuda_graph(batch)
        graph, given, losses = self._recorded
        for name, values in batch.items():
            given[name].copy_(values)
        graph.replay()
        return losses.clone()

    def _record_cuda_graph(self, batch: TensorBatch) -> tuple[Any, TensorBatch, Tensor]:
        """A CUDA graph of an update, what it looks at, and what it gives; learns from the batch some times."""
        given = {name: values.clone() for name, values in batch.items()}
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(N_WARMUP_UPDATES):
                self._update_networks(given)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            losses = self._update_networks(given)
        return graph, given, losses

    def _place_optimizers(self) -> None:
        """What they count lies where the networks are, which for a loaded model need not be where they were."""
        for optimizer in (self.actor.optimizer, self.critic.optimizer):
            for group in optimizer.param_groups:
                group["capturable"] = self.device.type == "cuda"
            for state in optimizer.state.values():
                if "step" in state:
                    state["step"] = state["step"].to(self.device)

    def set_parameters(self, *given: Any, **named: Any) -> None:
        """As in Stable-Baselines3. The optimizers get other memory by it, so a recorded update is forgotten."""
        self._recorded = None
        super().set_parameters(*given, **named)

    def _update_networks(self, batch: TensorBatch) -> Tensor:
        """One step of every critic and one of the actor; the losses of the actor and of the critics ``[2]``."""
        now, following = (
            {name.removeprefix(when): values for name, values in batch.items() if name.startswith(when)}
            for when in ("now.", "next.")
        )
        with torch.no_grad():
            ahead = self._next_state_values(self.critic_target.q_values(following, self.actor_target(following)))
            y = batch["reward"] + (1.0 - batch["done"]) * self.gamma * ahead
            y = y.clamp(-1.0 / (1.0 - self.gamma), 0.0)
        critic_loss = ((self.critic.q_values(now, batch["action"]) - y) ** 2).mean((1, 2)).sum()
        self.critic.optimizer.zero_grad(set_to_none=True)
        critic_loss.backward()
        self.critic.optimizer.step()

        action = self.actor(now)
        actor_loss = self.action_penalty * (action**2).mean() - self.critic.q1_forward(now, action).mean()
        self.actor.optimizer.zero_grad(set_to_none=True)
        actor_loss.backward(inputs=list(self.actor.parameters()))
        self.actor.optimizer.step()

        for own, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
            polyak_update(own.parameters(), target.parameters(), self.tau)
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)
        return torch.stack([actor_loss.detach(), critic_loss.detach()])

    def _next_state_values(self, values: Tensor) -> Tensor:
        """What the critics are to expect ``[J, B, 1]``, where their targets say ``values [J, B, 1]``: each its own."""
        return values

    def _sample_action(self, learning_starts: int, action_noise: Any = None, n_envs: int = 1) -> Any:
        """Actions ``[environments, A]`` as the environment and as the memory take them."""
        action, stored = super()._sample_action(learning_starts, action_noise, n_envs)
        for i in np.flatnonzero(self.action_space.np_random.random(n_envs) < self.random_actions):
            action[i] = self.action_space.sample()
            stored[i] = self.policy.scale_action(action[i])
        return action, stored

    def _store_transition(self, memory: Any, action: Any, seen: Any, reward: Any, *given: Any, **named: Any) -> None:
        """As in Stable-Baselines3, for rewards of 0 and -1."""
        check_sparse_rewards(reward)
        super()._store_transition(memory, action, seen, reward, *given, **named)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_recorded"]


# Normalised observations inside the networks of Stable-Baselines3, where they do not hide the goals.
#
#     TD3("MultiInputPolicy", env, policy_kwargs={"features_extractor_class": NormalisedFeatures})
#
# Every coordinate of the observation and of the achieved goal gets mean 0 and deviation 1, over all batches that were
# learnt from; the desired goal is scaled as the achieved one, so that goals far beyond what was achieved do not squeeze
# the rest together. This is the normaliser of the deep world of this package (:mod:`adagoal.deep.networks`).


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
