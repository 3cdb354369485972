"""Bounds on the probability of reaching a goal within k steps (docs/probabilities.md)."""
