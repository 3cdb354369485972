"""Callback for Stable-Baselines3 that ends training as soon as the policy is certified.

Training pauses every few steps, and fresh rollouts certify the policy of that moment (:func:`adagoal.certify`). Attempt
k has the share delta / (k (k + 1)), and all shares together are at most delta. So with probability 1 - delta no verdict
of any attempt is wrong, however many attempts there were.
"""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from adagoal.api.certify import certify
from adagoal.certification.certificate import Certification
from adagoal.core.argument_checks import check_integer, check_number
from adagoal.core.errors import InputError, Status


class StopWhenCertified(BaseCallback):
    """End ``model.learn`` when every cell of goals or starts is certified.

    Parameters
    ----------
    env: as in :func:`adagoal.certify`: a Gymnasium id, or a function that makes the environment. The rollouts of the
        certificate are played in environments of their own.
    every: environment steps between two attempts.
    delta: probability that any verdict of any attempt is wrong.
    min_share: share of the goals or starts that must lie in certified cells.
    halvings: 3 gives 8 cells. More cells cost more rollouts in every attempt.
    seed: of the rollouts; every attempt has fresh ones.
    claim: other arguments of :func:`adagoal.certify`, such as ``goals``, ``starts``, ``criterion``, ``success``.

    ``certificates`` holds the certificate of every attempt.
    """

    def __init__(
        self,
        env: Any,
        *,
        every: int = 10_000,
        delta: float = 0.05,
        min_share: float = 1.0,
        halvings: int = 3,
        seed: int = 0,
        workers: int = 1,
        verbose: int = 0,
        **claim: Any,
    ) -> None:
        super().__init__(verbose)
        check_integer("every", every, 1, 10**12)
        check_integer("seed", seed, 0, 2**30)
        check_number("min_share", min_share, 0.0, 1.0, closed="(]")
        check_number("delta", delta, 0.0, 1.0, closed="()")
        for name in ("policy", "out", "observe"):
            if name in claim:
                raise InputError("cannot be given to the callback", name)
        self.env, self.every, self.delta, self.min_share, self.seed = env, every, delta, min_share, seed
        self.claim: dict[str, Any] = {"halvings": halvings, "workers": workers, **claim}
        self.certificates: list[Certification] = []
        self._next_attempt = every

    @property
    def is_certified(self) -> bool:
        """Whether the last attempt ended training."""
        return bool(self.certificates) and self.certificates[-1].share("certified") >= self.min_share - 1e-9

    def _on_step(self) -> bool:
        if self.num_timesteps < self._next_attempt:
            return True
        self._next_attempt = self.num_timesteps + self.every
        attempt = len(self.certificates) + 1
        # Another seed for every attempt: rollouts that decided when to stop cannot be used again to certify.
        share, seed = self.delta / (attempt * (attempt + 1)), self.seed + attempt
        found = certify(self.model, self.env, delta=share, seed=seed, **self.claim)
        # Ctrl-C during the rollouts must end training as well.
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        self.certificates.append(found)
        self.logger.record("certify/share", found.share("certified"))
        self.logger.record("certify/rollouts", found.rollouts)
        if self.verbose:
            print(f"{self.num_timesteps} steps: {found.share('certified'):.0%} certified, {found.rollouts} rollouts")
        return not self.is_certified
