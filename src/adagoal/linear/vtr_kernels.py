"""The backward recursion of AdaGoal-UCRL.VTR (eq. ``eq_LFA_Q``, ``eq_LFA_pi``, ``eq_LFA_U``), goal by goal."""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from adagoal.core.types import Floats


class Ridge(NamedTuple):
    """One ridge regression per goal, as the recursion reads it."""

    theta: Floats
    """[G, d]"""
    root: Floats
    """[G, d, d]: ||root^T v|| = beta ||v||_{Sigma^-1}"""


@numba.njit(cache=True, nogil=True, inline="always")
def _feature(x, indptr, successors, features, f, phi):  # type: ignore[no-untyped-def]
    """phi <- phi_f(x)."""
    phi[:] = 0.0
    for j in range(indptr[x], indptr[x + 1]):
        value = f[successors[j]]
        for i in range(len(phi)):
            phi[i] += features[j, i] * value


@numba.njit(cache=True, nogil=True, inline="always")
def _mean_width(phi, theta, root):  # type: ignore[no-untyped-def]
    d = len(phi)
    mean, square = 0.0, 0.0
    for i in range(d):
        mean += theta[i] * phi[i]
    for c in range(d):
        along = 0.0
        for i in range(d):
            along += root[i, c] * phi[i]
        square += along * along
    return mean, math.sqrt(square)


@numba.njit(cache=True, nogil=True)
def backward(  # type: ignore[no-untyped-def]
    indptr, successors, features, terminal, start,  # the mixture
    goals, H, value, error,  # the goals, the horizon, and the two regressions (Ridge)
    policy, V_all, U_all,  # results: [H, S, G], and V_h, U_h [S, G] for h = 1 and 2 as [2, S, G]
):  # fmt: skip
    """h = H, ..., 1 with the clip range [1[s != g], H - h + 1] for Q and [0, H - h + 1] for U, 0 at the goal.

    The reset, action A, is known: Q = 1 + V_{h+1}(start), U = U_{h+1}(start).
    """
    S = V_all.shape[1]
    A = (len(indptr) - 1) // S
    phi = np.empty(features.shape[1])
    V_next, U_next, V, U = np.zeros(S), np.zeros(S), np.zeros(S), np.zeros(S)
    for g in range(len(goals)):
        V_next[:] = 0.0
        U_next[:] = 0.0
        for h in range(H, 0, -1):
            top = H - h + 1.0
            for s in range(S):
                best = min(1.0 + V_next[start], top)
                missing = min(U_next[start], top)
                action = A
                spread = 0.0
                for a in range(0 if terminal[s] else A):
                    _feature(s * A + a, indptr, successors, features, V_next, phi)
                    mean, width = _mean_width(phi, value.theta[g], value.root[g])
                    Q = min(max(1.0 + mean - width, 1.0), top)
                    if Q < best:
                        best, action, spread = Q, a, width
                if action < A:
                    _feature(s * A + action, indptr, successors, features, U_next, phi)
                    mean, width = _mean_width(phi, error.theta[g], error.root[g])
                    missing = min(max(2.0 * spread + mean + width, 0.0), top)
                here = s == goals[g]
                V[s] = 0.0 if here else best
                U[s] = 0.0 if here else missing
                policy[h - 1, s, g] = action
            V_next[:] = V
            U_next[:] = U
            if h <= 2:
                V_all[h - 1, :, g] = V
                U_all[h - 1, :, g] = U
