"""Bounds and H-stage plans for linear mixtures: p(s' | x) = <theta, phi(s' | x)>, with known phi [d], unknown theta.

With phi_f(x) = sum_{s'} phi(s' | x) f(s'), a mean is p f = <theta, phi_f>. The confidence region of theta bounds it by
<theta, phi_f> -+ ||root^T phi_f||, with the centre theta and the root of a
:class:`~adagoal.planning.model_arrays.ThetaRegion` (certified bounds) or of one goal's
:class:`~adagoal.planning.model_arrays.RidgeEstimates` (the H stages of the paper).

*Certified bounds.* root^T row_sums[x] = 0, so f may be shifted by a constant: f is centred at f(s) against
cancellation. Two more bounds on p f need no data: p f lies between the smallest and the largest entry of phi_f if theta
is in the simplex, and between the smallest and the largest f on the support otherwise.

*H stages* (eq. ``eq_LFA_Q``, ``eq_LFA_pi``, ``eq_LFA_U``): h = H, ..., 1 with the clip range [1[s != g], H - h + 1]
for Q and [0, H - h + 1] for U, 0 at the goal. The reset, action A, is known: Q = 1 + V_{h+1}(s0), U = U_{h+1}(s0).
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.core.array_types import Actions, Floats
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.planning.model_arrays import MixtureBlock, MixtureFeatures, ThetaRegion, goal_holds_state


def improve_mixture_bounds(
    features: MixtureFeatures,
    region: ThetaRegion,
    reach: MixtureBlock,
    V: Floats,
    Y: Floats,
    greedy: Actions,
    policy: Actions,
) -> tuple[Floats, Floats, Actions, Actions]:
    """Improve lower bounds V with their greedy actions, and upper bounds Y with their policy, all [B, S]."""
    start, cap = features.start, reach.cap
    for b in range(reach.targets.size):
        direct, goal = reach.direct[b], (reach.targets.column == b).any(axis=1)
        # States at or above the reset cannot improve. Sweeps visit the others from the goal outwards.
        near = np.flatnonzero(direct & reach.reachable & (V[b] < min(cap, 1.0 + Y[b, start])))
        order = near[np.argsort(V[b, near], kind="stable")]
        for _ in range(reach.sweeps):
            rise = mixture_lower_sweep(order, goal, features, region, cap, V[b], greedy[b])
            # These states cannot reach the goal below the cap without a reset, so their bound follows the start's.
            V[b, ~direct] = min(cap, 1.0 + V[b, start])
            if rise < reach.tolerance:
                break
        # The lower bounds have risen, so fewer states can improve on the reset.
        order = order[V[b, order] < min(cap, 1.0 + Y[b, start])]
        for _ in range(reach.sweeps):
            if mixture_upper_sweep(order, goal, features, region, cap, Y[b], policy[b]) < reach.tolerance:
                break
    return V, Y, greedy, policy


@compiled_helper(inline="always")
def _expected_feature(x, features, f, centre, phi):  # type: ignore[no-untyped-def]
    """phi <- phi_f(x) with f shifted by ``centre``. Return the smallest and the largest shifted f."""
    least, most = np.inf, -np.inf
    phi[:] = 0.0
    for j in range(features.indptr[x], features.indptr[x + 1]):
        value = f[features.successors[j]] - centre
        least = min(least, value)
        most = max(most, value)
        for i in range(len(phi)):
            phi[i] += features.features[j, i] * value
    return least, most


@compiled_helper(inline="always")
def _mean_and_width(phi, theta, root):  # type: ignore[no-untyped-def]
    """Return <theta, phi> and ||root^T phi||."""
    d = len(phi)
    mean, square = 0.0, 0.0
    for i in range(d):
        mean += theta[i] * phi[i]
    for c in range(root.shape[1]):
        along = 0.0
        for i in range(d):
            along += root[i, c] * phi[i]
        square += along * along
    return mean, math.sqrt(square)


@compiled_helper(inline="always")
def _mean_interval(x, s, features, region, f, phi):  # type: ignore[no-untyped-def]
    """Return bounds (low, up) on p_x f for a pair x of the state s."""
    least, most = _expected_feature(x, features, f, f[s], phi)
    # A mixture lies between its extreme components, which is narrower than the range over the support.
    if region.simplex:
        least, most = phi.min(), phi.max()
    mean, width = _mean_and_width(phi, region.theta, region.root)
    return f[s] + max(mean - width, least), f[s] + min(mean + width, most)


@compiled
def mixture_lower_sweep(order, goal, features, region, cap, V, policy):  # type: ignore[no-untyped-def]
    """V [S] <- max(V, T_low V) at the states of ``order``, policy <- the greedy actions. Return the largest rise.

    T_low V(s) = min{ cap, 1 + V(start), min_a 1 + Low_sa(V) }, 0 in the states of ``goal`` [S]; the reset is action A.
    A state with V(s) >= 1 + V(start) cannot rise, and the policy resets there.
    """
    A = (len(features.indptr) - 1) // len(V)
    phi = np.empty(len(region.theta))
    rise = 0.0
    for s in order:
        best, action = 1.0 + V[features.start], A
        for a in range(0 if features.terminal[s] or V[s] >= best else A):
            low, _ = _mean_interval(s * A + a, s, features, region, V, phi)
            if 1.0 + low < best:
                best, action = 1.0 + low, a
        policy[s] = action
        best = min(best, cap)
        if best > V[s] and not goal[s]:
            rise = max(rise, best - V[s])
            V[s] = best
    return rise


@compiled
def mixture_upper_sweep(order, goal, features, region, cap, Y, policy):  # type: ignore[no-untyped-def]
    """Y [S] <- min(Y, T_up Y) at the states of ``order``; if Y falls, the policy takes the action. Return the fall.

    T_up Y(s) = min{ 1 + Y(start), min_a 1 + Up_sa(Y) }, 0 at the goal. The reset is tried in every state.
    """
    A = (len(features.indptr) - 1) // len(Y)
    phi = np.empty(len(region.theta))
    fall = 0.0
    top = min(cap, 1.0 + Y[features.start])
    # As in lemma 6: no action is tried before every state is at most top.
    for s in range(len(Y)):
        if Y[s] > top:
            Y[s], policy[s] = top, A
    for s in order:
        if features.terminal[s] or goal[s]:
            continue
        for a in range(A):
            _, up = _mean_interval(s * A + a, s, features, region, Y, phi)
            if 1.0 + up < Y[s]:
                fall = max(fall, Y[s] - 1.0 - up)
                Y[s], policy[s] = 1.0 + up, a
    return fall


@compiled
def plan_mixture_horizon(features, value, error, targets, horizon):  # type: ignore[no-untyped-def]
    """Return the policies [H, S, G], and V_h and U_h for h = 1 and 2 as [2, S, G], goal by goal.

    ``value`` and ``error`` are the ridge regressions with the targets V and U.
    """
    start, S, G = features.start, len(features.terminal), targets.size
    A = (len(features.indptr) - 1) // S
    policy = np.empty((horizon, S, G), np.int16)
    first_V, first_U = np.zeros((2, S, G)), np.zeros((2, S, G))
    phi = np.empty(features.features.shape[1])
    V_next, U_next, V, U = np.zeros(S), np.zeros(S), np.zeros(S), np.zeros(S)
    # Goal by goal, because every goal has its own regression.
    for g in range(G):
        V_next[:], U_next[:] = 0.0, 0.0
        for h in range(horizon, 0, -1):
            top = horizon - h + 1.0
            for s in range(S):
                best, missing = min(1.0 + V_next[start], top), min(U_next[start], top)
                action, spread = A, 0.0
                for a in range(0 if features.terminal[s] else A):
                    _expected_feature(s * A + a, features, V_next, 0.0, phi)
                    mean, width = _mean_and_width(phi, value.theta[g], value.root[g])
                    Q = min(max(1.0 + mean - width, 1.0), top)
                    if Q < best:
                        best, action, spread = Q, a, width
                # U follows the chosen action only, so it is computed once per state.
                if action < A:
                    _expected_feature(s * A + action, features, U_next, 0.0, phi)
                    mean, width = _mean_and_width(phi, error.theta[g], error.root[g])
                    missing = min(max(2.0 * spread + mean + width, 0.0), top)
                here = goal_holds_state(targets.column, s, g)
                V[s], U[s] = (0.0, 0.0) if here else (best, missing)
                policy[h - 1, s, g] = action
            V_next[:], U_next[:] = V, U
            if h <= 2:
                first_V[h - 1, :, g], first_U[h - 1, :, g] = V, U
    return policy, first_V, first_U
