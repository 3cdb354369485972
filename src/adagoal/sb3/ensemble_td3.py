"""TD3 with an ensemble of critics: the learner of :mod:`adagoal.deep.ensemble_ddpg` in Stable-Baselines3.

    model = EnsembleTD3("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, ...)

It differs from TD3, whose other settings it keeps, as follows:

    hidden layers of the critics are normalised, so critics do not overestimate actions that were never tried
    y_j = clip(r + gamma Q_j'(s', pi'(s', g), g), -1/(1 - gamma), 0)     a target of its own for each critic, no minimum
    the actor minimises -mean_j Q_j(s, pi(s, g), g) + c mean pi^2        c is ``action_penalty``
    a share ``random_actions`` of the training actions is uniform; the others get the ``action_noise``

Rewards other than -1 and 0 are refused, because of the clip. The actor is not delayed and targets have no noise. The
batches of several updates are drawn at once. On a GPU the first update is recorded as a CUDA graph and then replayed,
because its small kernels take far longer to launch than to run; so the learning rate stays the initial one.
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
from adagoal.deep.value_formulas import MAX_NORMALISED_VALUE, MIN_DEVIATION, moment_shifts
from adagoal.sb3.goal_wrapper import check_sparse_rewards

# Updates whose batches are drawn at once, at most: a draw calls ``compute_reward`` in an environment process.
MAX_BATCHES_AT_ONCE = 50
# action, reward, done, and now.NAME and next.NAME for each part of observations, [B, ...]: flat, so that one loop
# copies a batch into a CUDA graph.
TensorBatch = dict[str, Tensor]


class EnsembleCritic(ContinuousCritic):
    """J critics in one module: weights ``[J, in, out]``, so one kernel evaluates all of them."""

    normalises_layers: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Stable-Baselines3 has made J networks qf0, qf1, ...: stack their weights and drop them
        names = [f"qf{i}" for i in range(self.n_critics)]
        linears = [[layer for layer in getattr(self, name) if isinstance(layer, nn.Linear)] for name in names]
        for name in names:
            delattr(self, name)
        self.q_networks: list[Any] = []
        layers = list(zip(*linears, strict=True))
        self.weights = nn.ParameterList(torch.stack([one.weight.T for one in members]) for members in layers)
        self.biases = nn.ParameterList(torch.stack([one.bias for one in members])[:, None] for members in layers)

    def q_values(self, observations: Any, actions: Tensor) -> Tensor:
        """Values ``[J, B, 1]``."""
        features = self.extract_features(observations, self.features_extractor)
        x = torch.cat([features, actions], 1).expand(self.n_critics, -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = torch.baddbmm(bias, x, weight)
            x = functional.relu(functional.layer_norm(x, x.shape[-1:]) if self.normalises_layers else x)
        return torch.baddbmm(self.biases[-1], x, self.weights[-1])

    def forward(self, obs: Any, actions: Tensor) -> tuple[Tensor, ...]:
        """Values of each critic ``[B, 1]``."""
        return tuple(self.q_values(obs, actions))

    def q1_forward(self, obs: Any, actions: Tensor) -> Tensor:
        """Mean of the critics ``[B, 1]``, which the actor maximises."""
        return self.q_values(obs, actions).mean(0)


class EnsemblePolicy(MultiInputPolicy):
    """Policy with three critics and normalised features, unless ``policy_kwargs`` say otherwise."""

    critic_class: ClassVar[type[EnsembleCritic]] = EnsembleCritic

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        own = {"n_critics": 3, "net_arch": [256, 256, 256], "features_extractor_class": NormalisedFeatures}
        super().__init__(*args, **own | kwargs)

    def make_critic(self, features_extractor: Any = None) -> EnsembleCritic:
        """Called by Stable-Baselines3 for the critic and its target."""
        critic = self.critic_class(**self._update_features_extractor(self.critic_kwargs, features_extractor))
        critic.to(self.device)
        return critic


class EnsembleTD3(TD3):
    """TD3 with the changes that the module's docstring lists.

    Parameters
    ----------
    action_penalty: c, the weight of the mean squared action in the actor's loss.
    random_actions: share of training actions that are uniform.
    """

    policy_aliases: ClassVar[dict[str, Any]] = {"MultiInputPolicy": EnsemblePolicy}
    targets_minimum: ClassVar[bool] = False  # whether all critics share the smallest target, as in TD3

    def __init__(
        self, policy: Any, env: Any, *args: Any, action_penalty: float = 1.0, random_actions: float = 0.3, **kwargs: Any
    ) -> None:
        check_number("action_penalty", action_penalty, 0.0, math.inf, closed="[)")
        check_number("random_actions", random_actions, 0.0, 1.0)
        check_number("gamma", kwargs.get("gamma", 0.99), 0.0, 1.0, closed="[)")
        self.action_penalty, self.random_actions = action_penalty, random_actions
        self._recorded: tuple[Any, TensorBatch, Tensor] | None = None
        super().__init__(policy, env, *args, **kwargs)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Make ``gradient_steps`` updates."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        # at every call, because the model may have been loaded onto another device
        self._place_optimizers()
        losses: list[Tensor] = []
        for first in range(0, gradient_steps, MAX_BATCHES_AT_ONCE):
            count = min(MAX_BATCHES_AT_ONCE, gradient_steps - first)
            drawn = self._sample_batch(count * batch_size)
            # a stride, because the replay buffer puts all relabelled transitions last
            batches = ({name: values[i::count] for name, values in drawn.items()} for i in range(count))
            losses += [self._learn_from_batch(batch) for batch in batches]
        self._n_updates += gradient_steps
        actor_loss, critic_loss = torch.stack(losses).mean(0).tolist()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/actor_loss", actor_loss)
        self.logger.record("train/critic_loss", critic_loss)

    def _sample_batch(self, count: int) -> TensorBatch:
        assert self.replay_buffer is not None
        sample: Any = self.replay_buffer.sample(count, env=self._vec_normalize_env)
        parts = {"action": sample.actions, "reward": sample.rewards, "done": sample.dones}
        parts |= {f"now.{name}": values for name, values in sample.observations.items()}
        return parts | {f"next.{name}": values for name, values in sample.next_observations.items()}

    def _learn_from_batch(self, batch: TensorBatch) -> Tensor:
        """One update, on a GPU by replaying its CUDA graph; returns the losses ``[2]``."""
        if self.device.type != "cuda":
            return self._update_networks(batch)
        # A graph has fixed addresses and shapes: batches are copied into its inputs, and another size needs a new one.
        if self._recorded is None or len(self._recorded[1]["action"]) != len(batch["action"]):
            self._recorded = self._record_cuda_graph(batch)
        graph, inputs, losses = self._recorded
        for name, values in batch.items():
            inputs[name].copy_(values)
        graph.replay()
        return losses.clone()  # the next replay overwrites the tensor

    def _record_cuda_graph(self, batch: TensorBatch) -> tuple[Any, TensorBatch, Tensor]:
        """CUDA graph of an update, its input tensors and its losses; the warm-up learns from the batch three times."""
        inputs = {name: values.clone() for name, values in batch.items()}
        # PyTorch asks for a warm-up on another stream: lazily created state must exist before the recording
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._update_networks(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            losses = self._update_networks(inputs)
        return graph, inputs, losses

    def _place_optimizers(self) -> None:
        for optimizer in (self.actor.optimizer, self.critic.optimizer):
            for group in optimizer.param_groups:
                group["capturable"] = self.device.type == "cuda"
            for state in optimizer.state.values():
                if "step" in state:
                    state["step"] = state["step"].to(self.device)

    def set_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Set parameters as Stable-Baselines3 does, and drop the CUDA graph, which points to the old memory."""
        self._recorded = None
        super().set_parameters(*args, **kwargs)

    def _update_networks(self, batch: TensorBatch) -> Tensor:
        """One step of every critic and one of the actor; returns the losses of actor and critics ``[2]``."""
        now, following = (
            {name.removeprefix(when): values for name, values in batch.items() if name.startswith(when)}
            for when in ("now.", "next.")
        )
        with torch.no_grad():
            next_values = self.critic_target.q_values(following, self.actor_target(following))
            if self.targets_minimum:
                next_values = next_values.min(0, keepdim=True).values.expand_as(next_values)
            y = batch["reward"] + (1.0 - batch["done"]) * self.gamma * next_values
            y = y.clamp(-1.0 / (1.0 - self.gamma), 0.0)
        # a sum over critics, so each has the gradient of its own mean
        critic_loss = ((self.critic.q_values(now, batch["action"]) - y) ** 2).mean((1, 2)).sum()
        self.critic.optimizer.zero_grad(set_to_none=True)
        critic_loss.backward()
        self.critic.optimizer.step()

        action = self.actor(now)
        actor_loss = self.action_penalty * (action**2).mean() - self.critic.q1_forward(now, action).mean()
        self.actor.optimizer.zero_grad(set_to_none=True)
        # only into the actor: gradients of the critics would be thrown away
        actor_loss.backward(inputs=list(self.actor.parameters()))
        self.actor.optimizer.step()

        for own, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
            polyak_update(own.parameters(), target.parameters(), self.tau)
        polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
        polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)
        return torch.stack([actor_loss.detach(), critic_loss.detach()])

    def _sample_action(self, learning_starts: int, action_noise: Any = None, n_envs: int = 1) -> Any:
        """Actions ``[environments, A]`` in the units of the environment, and scaled for the replay buffer."""
        action, stored = super()._sample_action(learning_starts, action_noise, n_envs)
        for i in np.flatnonzero(self.action_space.np_random.random(n_envs) < self.random_actions):
            action[i] = self.action_space.sample()
            stored[i] = self.policy.scale_action(action[i])
        return action, stored

    def _store_transition(
        self, buffer: Any, action: Any, observation: Any, reward: Any, *args: Any, **kwargs: Any
    ) -> None:
        # before it is stored, because a stored reward is replayed again and again
        check_sparse_rewards(reward)
        super()._store_transition(buffer, action, observation, reward, *args, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_recorded"]


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
        # torch.where, not if: a CUDA graph cannot branch
        scale = torch.where(weight > 0, deviation, torch.ones_like(deviation))
        goal = flat["desired_goal"].shape[1]
        desired = (flat["desired_goal"] - mean[-goal:]) / scale[-goal:]
        return torch.cat([(known - mean) / scale, desired], 1).clamp(-MAX_NORMALISED_VALUE, MAX_NORMALISED_VALUE)

    def _merge_batch_moments(self, batch: Tensor) -> None:
        moments: Any = self
        added, weight, mean = float(len(batch)), moments.running_weight, batch.mean(0)
        mean_shift, squares_shift = moment_shifts(mean - moments.running_mean, weight, added, weight + added)
        # in place, because a CUDA graph holds these tensors
        moments.running_squares += ((batch - mean) ** 2).sum(0) + squares_shift
        moments.running_mean += mean_shift
        moments.running_weight += added
