"""How often is a certificate wrong? Many certificates of policies whose truth is known.

    python benchmarks/deep_certify.py --runs 300 --out docs/data/deep-certify.json

Four policies on a square of goals: every cell reaches just too little to be certified; just enough not to be refuted;
with probabilities from 0.68 to 1 across the square; and a noisy controller on the point-mass, whose truth is the share
of 400,000 rollouts (three standard errors are granted to it). A certificate counts as wrong if one of its verdicts is
false; that may happen to delta of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adagoal.certification.certificate import CellVerdict, Certification, Claim, Verdict
from adagoal.certification.certifier import Certifier
from adagoal.core.array_types import Bools, Floats
from adagoal.core.file_io import write_json

CLAIM = Claim(radius=10, delta=0.1, slack=0.1, halvings=4)
POINT_MASS = Claim(radius=8, delta=0.1, halvings=4)
"""Of the controller: its cells reach between 0.85 and 0.96."""
MARGIN = 1e-3
ROLLOUTS = 400_000

Truth = Callable[[CellVerdict], tuple[float, float]]
"""The probability of a cell, and how far it may be off."""


class Policy(NamedTuple):
    """Something to certify."""

    claim: Claim
    reach: Callable[[Floats, np.random.Generator], Bools]
    truth: Truth


def square(rng: np.random.Generator, n: int) -> Floats:
    """Goals."""
    return rng.uniform(-1.0, 1.0, (n, 2))


def coins(probability: Callable[[Floats], Floats]) -> Policy:
    """A policy that reaches a goal with a given probability, linear in it: a cell's is that of its centre."""

    def truth(cell: CellVerdict) -> tuple[float, float]:
        return float(probability((cell.low + cell.high)[None] / 2)[0]), MARGIN

    return Policy(CLAIM, lambda goals, rng: rng.random(len(goals)) < probability(goals), truth)


def flat(p: float) -> Callable[[Floats], Floats]:
    """The same probability everywhere."""
    return lambda goals: np.full(len(goals), p)


def slope(goals: Floats) -> Floats:
    """From 0.68 to 1, across the square."""
    return np.asarray(0.84 + 0.1 * goals[:, 0] + 0.06 * goals[:, 1])


def controlled(goals: Floats, rng: np.random.Generator) -> Bools:
    """The dynamics of :mod:`adagoal.deep.pointmass` and a bounded, noisy proportional controller; ``[n]``."""
    position, velocity = rng.uniform(-0.5, 0.5, goals.shape), np.zeros(goals.shape)
    reached = np.zeros(len(goals), bool)
    for _ in range(POINT_MASS.radius):
        action = np.clip(4.0 * (goals - position) - velocity + rng.normal(0.0, 0.5, goals.shape), -1.0, 1.0)
        velocity = 0.5 * velocity + 0.1 * action
        position = np.clip(position + velocity, -1.5, 1.5)
        reached |= np.linalg.norm(position - goals, axis=1) <= 0.1
    return reached


@cache
def sampled() -> tuple[Floats, Bools]:
    """Many goals, and whether the controller reached them."""
    goals = square(np.random.default_rng(0), ROLLOUTS)
    return goals, controlled(goals, np.random.default_rng(1))


def measured(cell: CellVerdict) -> tuple[float, float]:
    """What the controller reaches of a cell, and three standard errors of that."""
    goals, reached = sampled()
    own = reached[((goals > cell.low) & (goals <= cell.high)).all(1)]
    return float(own.mean()), float(3.0 * np.sqrt(own.mean() * (1.0 - own.mean()) / len(own)))


POLICIES = {
    "just too bad": coins(flat(CLAIM.success - CLAIM.slack - 0.002)),
    "just good enough": coins(flat(CLAIM.success + 0.002)),
    "a slope": coins(slope),
    "a controller of the point-mass": Policy(POINT_MASS, controlled, measured),
}


def certified(policy: Policy, seed: int) -> Certification:
    """A certificate, from coins of its own."""
    rng = np.random.default_rng([seed, 1])
    return Certifier(policy.claim, square, seed).run(lambda goals, _: policy.reach(goals, rng))


def false_verdicts(found: Certification, truth: Truth) -> int:
    """Cells whose verdict is not true."""
    claim, count = found.claim, 0
    for cell in found.cells:
        p, error = truth(cell)
        too_low = cell.verdict is Verdict.CERTIFIED and p < claim.success - claim.slack - error
        count += too_low or (cell.verdict is Verdict.REFUTED and p >= claim.success + error)
    return count


def counted(name: str, runs: int) -> dict[str, Any]:
    """How many of the certificates of a policy are wrong."""
    policy = POLICIES[name]
    found = [certified(policy, seed) for seed in range(runs)]
    false = [false_verdicts(each, policy.truth) for each in found]
    return {
        "policy": name,
        "certificates": runs,
        "delta": policy.claim.delta,
        "wrong": sum(count > 0 for count in false),
        "false_verdicts": sum(false),
        "verdicts": sum(len(each.cells) for each in found),
        "open": sum(each.count(Verdict.OPEN) for each in found),
        "rollouts": round(float(np.mean([each.rollouts for each in found]))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for name in POLICIES:
        rows.append(counted(name, options.runs))
        row = rows[-1]
        print(
            f"{name:32} wrong {row['wrong']} of {row['certificates']} certificates (delta {row['delta']}), "
            f"{row['false_verdicts']} of {row['verdicts']} verdicts; {row['rollouts']} rollouts each",
            flush=True,
        )
    if options.out is not None:
        write_json(options.out, {"claims": [vars(CLAIM), vars(POINT_MASS)], "rows": rows})


if __name__ == "__main__":
    main()
