"""Models and sets of states for the tests of goals that are sets."""

import numpy as np

from adagoal.envs import toy_models
from experiments import extra_models

MODELS = {
    "sparse": toy_models.random_sparse(n_states=8, n_actions=2, seed=3),
    "traps": extra_models.random_traps(n_states=10, n_actions=2, seed=2),
    "unreachable": extra_models.random_unreachable(n_states=10, n_actions=2, seed=0),
    "grid": toy_models.open_grid_model(rows=3, cols=3, slip=0.1),
}
GRID = {"rows": 3, "cols": 4}
SCALES = {"ucbexplore": 1e-4, "disco": 0.01, "valae": 1e-5, "lae": 0.001}
BASELINES = {method: {"constants": f"scaled={SCALES[method]}"} for method in ("ucbexplore", "disco")}


def random_sets(mdp, seed):
    """Draw overlapping sets of states, one with a single state and one with the start."""
    rng = np.random.default_rng(seed)
    sets = [rng.choice(mdp.n_states, size, replace=False).tolist() for size in (1, 2, 3, 4)]
    return [*sets, [mdp.start, *sets[1]]]


def second(observation):
    """Return the second entry of an observation as its goal."""
    return int(observation[1])
