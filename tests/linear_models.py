"""Random mixtures for the tests, and simple reference implementations of the linear kernels."""

import math

import numpy as np

from adagoal import goal_rules
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.goal_space import GoalSpace
from adagoal.core.linear_mixture import mixture_from_kernels
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.mixture_models import mixture_from_models, model_from_mixture
from adagoal.envs.simulator import ModelSimulator
from adagoal.methods import ExplorationProblem, build_estimates


def random_mixture(seed, n_states=8, d=3, signed=False):
    """Return (true model, theta) of d random sparse kernels; with ``signed``, all but the first are differences."""
    rng = np.random.default_rng(seed)
    models = [
        toy_models.random_sparse(n_states=n_states, n_actions=2, branching=3, seed=10 * seed + i) for i in range(d)
    ]
    theta = rng.dirichlet(np.ones(d))
    if not signed:
        return model_from_mixture(mixture_from_models(models), theta), theta
    kernels = [m.kernel() for m in models]
    kernels = kernels[:1] + [k - kernels[0] for k in kernels[1:]]
    theta = np.append(1.0, theta[1:])
    return model_from_mixture(mixture_from_kernels(kernels, 2, B=2.0), theta), theta


def start(mdp, method, L=6.0, epsilon=1.0, delta=0.1, goals=None, seed=0, **arguments):
    """Return a run before its first step."""
    env = ModelSimulator(mdp)
    counts = TransitionCounts(env.initial_states, env.n_actions, env.start)
    space = GoalSpace.from_states(mdp.n_states, mdp.n_states, None if goals is None else np.asarray(goals))
    estimates = build_estimates(method, ExplorationProblem(env, counts, L, epsilon, delta, space), arguments)
    return ExplorationRun(env, estimates, goal_rules.adagoal, np.random.default_rng(seed))


def observe(counts, mdp, n, rng):
    """Add n transitions of every pair."""
    counts.grow_successors(int(np.diff(mdp.indptr).max()))
    for x in range(len(counts.n)):
        span = slice(mdp.indptr[x], mdp.indptr[x + 1])
        size = span.stop - span.start
        counts.successor[x, :size], counts.support[x] = mdp.successors[span], size
        counts.count[x, :size] += rng.multinomial(n, mdp.probabilities[span])
    counts.n += n


def interval(mixture, x, f, region, simplex):
    """Return [low, up] of p_x f, by the definitions."""
    dense = np.zeros((mixture.n_states, mixture.d))
    span = slice(mixture.indptr[x], mixture.indptr[x + 1])
    dense[mixture.successors[span]] = mixture.features[span]
    phi = dense.T @ f
    mean, width = region.theta @ phi, np.linalg.norm(region.root.T @ phi)
    possible = phi if simplex else f[mixture.successors[span]]
    return max(mean - width, possible.min()), min(mean + width, possible.max())


def lower_reference(mixture, region, cap, goal, V, simplex, order):
    V = V.copy()
    for s in order:
        values = [1 + interval(mixture, s * mixture.n_actions + a, V, region, simplex)[0] for a in range(2)]
        if s != goal:
            V[s] = max(V[s], min(cap, 1 + V[mixture.start], *values))
    return V


def upper_reference(mixture, region, cap, goal, Y, simplex, order):
    Y = np.minimum(Y, min(cap, 1 + Y[mixture.start]))
    for s in order:
        for a in range(2):
            up = interval(mixture, s * mixture.n_actions + a, Y, region, simplex)[1]
            if s != goal:
                Y[s] = min(Y[s], 1 + up)
    return Y


def backward_reference(mixture, goal, H, value, error):
    """Return V_1, U_1 [S] and the policy [H, S] of one goal, by eq. ``eq_LFA_Q`` and ``eq_LFA_U``."""
    S, A = mixture.n_states, mixture.n_actions
    V, U, policy = np.zeros(S), np.zeros(S), np.zeros((H, S), int)

    def parts(f, ridge):
        phi = mixture.phi(f)
        return phi @ ridge.theta[0], np.array([np.linalg.norm(ridge.root[0].T @ row) for row in phi])

    for h in range(H, 0, -1):
        (mean, width), (mean_u, width_u) = parts(V, value), parts(U, error)
        top = H - h + 1
        Q = np.clip(1 + mean - width, 1, top).reshape(S, A)
        both = np.concatenate([np.full((S, 1), min(1 + V[mixture.start], top)), Q], axis=1)
        policy[h - 1] = np.where(both.argmin(axis=1) == 0, A, both.argmin(axis=1) - 1)
        x = np.arange(S) * A + np.minimum(policy[h - 1], A - 1)
        missing = np.clip(2 * width[x] + mean_u[x] + width_u[x], 0, top)
        missing = np.where(policy[h - 1] == A, min(U[mixture.start], top), missing)
        V, U = both.min(axis=1), missing
        V[goal] = U[goal] = 0.0
    return V, U, policy


def finite_values(mdp, goal, H, policy=None):
    """Return V_1 [S] with H steps, of the policy [H, S] or of the best one."""
    p = np.concatenate([mdp.kernel().toarray().reshape(mdp.n_states, mdp.n_actions, -1)], axis=1)
    V = np.zeros(mdp.n_states)
    for h in range(H, 0, -1):
        Q = np.concatenate([1 + p @ V, np.full((mdp.n_states, 1), 1 + V[mdp.start])], axis=1)
        V = Q.min(axis=1) if policy is None else Q[np.arange(mdp.n_states), policy[h - 1]]
        V[goal] = 0.0
        assert math.isfinite(V.max())
    return V
