"""Count a single transition, without an environment."""

from adagoal.core.transition_data import TransitionCounts, count_transition


def record_transition(counts: TransitionCounts, state: int, action: int, successor: int) -> int:
    """Count one transition and return the new count of the pair."""
    pair = state * counts.n_actions + action
    while not count_transition(pair, successor, *counts.transition_arrays()):
        counts.grow_successors(2 * counts.successor.shape[1])
    return int(counts.n[pair])
