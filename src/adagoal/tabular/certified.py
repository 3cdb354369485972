"""prototype"""
from __future__ import annotations

import math
import numpy as np
from adagoal.envs.world import Plan
from adagoal.tabular import kernels
from adagoal.tabular.counts import Counts

BLOCK = 16


class Certified:
    def __init__(self, counts, state_bound, goal_space, L, eps, delta, bound=None, exact=True, growth=1.3, sweeps=20, tol=1e-3, crit="gap"):
        self.counts = counts
        self.L, self.eps, self.delta = L, eps, delta
        self.cap = L + 1 + eps
        self.states = state_bound
        self.exact = exact; self.growth = growth; self.sweeps = sweeps; self.tol = tol; self.crit = crit
        A = counts.n_actions
        pairs = state_bound * A
        self.goal_space = np.arange(counts.n_states) if goal_space is None else np.asarray(goal_space)
        G = len(self.goal_space)
        self.log_fixed = math.log(2 * pairs * G / delta)
        self.log_kernel = math.log(2 * pairs / delta)
        self.bound = bound or state_bound
        S = counts.n_states
        X = S * A
        C = G + 1
        self.V = np.zeros((S, C)); self.Y = np.full((S, C), self.cap)
        self.explore = np.zeros((1, S, C), np.int16)
        self.best = np.full((S, C), A, np.int16)
        self.goal_state = np.full(C, -2); self.goal_state[0] = -1
        self.column = np.zeros(S, np.int64)
        self.n_col = 1
        self.D = np.zeros(C); self.upper = np.full(C, np.inf); self.E = np.full(C, self.cap)
        self.gapb = np.full(C, np.inf)
        self.stale = np.ones(C, bool)
        K = counts.successor.shape[1]
        self.p = np.zeros((X, K)); self.r_fixed = np.full(X, np.inf); self.r_kernel = np.full(X, np.inf); self.r_low = np.full(X, np.inf)
        self.n_done = np.zeros(X, np.int64)
        self.isgoal = np.zeros(S, bool); self.isgoal[self.goal_space] = True
        self.sweep_count = 0
        self.refreshes = 0
        self.sync()

    def sync(self):
        c = self.counts
        new = np.flatnonzero(c.seen & self.isgoal & (self.column == 0))
        for s in new:
            j = self.n_col
            self.n_col += 1
            self.column[s] = j; self.goal_state[j] = s
            self.V[:, j] = self.V[:, 0]; self.V[s, j] = 0
            self.Y[s, j] = 0
            self.D[j] = self.V[c.start, j]
            self.E[j] = self.cap - self.D[j]
            if s == c.start:
                self.upper[j] = 0; self.E[j] = 0; self.D[j] = 0
        if self.n_col == len(self.goal_state) : # all seen
            self.D[0] = np.inf; self.E[0] = 0
        if self.p.shape[1] < c.successor.shape[1]:
            self.p = np.pad(self.p, ((0, 0), (0, c.successor.shape[1] - self.p.shape[1])))
        changed = np.flatnonzero(c.n != self.n_done)
        if len(changed):
            kernels.radii(changed, c.count, c.support, c.n, self.log_fixed, self.log_kernel, self.bound, self.states, self.p, self.r_fixed, self.r_kernel)
            self.r_low[changed] = np.minimum(self.r_fixed[changed], self.r_kernel[changed])
            self.n_done[changed] = c.n[changed]
            self.order = np.flatnonzero(c.seen)
            self.stale[:] = True
        self.order = np.flatnonzero(c.seen)

    def open(self):
        return (self.D <= self.L) & (self.E > self.eps) & ((self.goal_state >= -1))

    def refresh_block(self, block):
        c = self.counts
        self.refreshes += 1
        S = c.n_states; B = len(block); A = c.n_actions
        V = np.ascontiguousarray(self.V[:, block]); Y = np.ascontiguousarray(self.Y[:, block])
        pl = np.ascontiguousarray(self.explore[0][:, block]); pu = np.ascontiguousarray(self.best[:, block])
        goal_column = np.full(S, -1); gs = self.goal_state[block]
        goal_column[gs[gs >= 0]] = np.flatnonzero(gs >= 0)
        Q = np.empty((A, B)); spread = np.empty((A, B)); top = np.empty(B)
        orders = (self.order, self.order[::-1].copy())
        for i in range(self.sweeps):
            self.sweep_count += 1
            rise = kernels.lower_sweep(orders[i % 2], goal_column, c.successor, self.p, c.support, self.r_low, c.terminal, c.start, self.cap, self.exact, V, pl, Q, spread)
            if rise < self.tol: break
        for i in range(self.sweeps):
            self.sweep_count += 1
            fall = kernels.upper_sweep(orders[i % 2], goal_column, c.successor, self.p, c.support, self.r_kernel, c.terminal, c.start, self.cap, self.exact, Y, pu, Q, spread, top)
            if fall < self.tol: break
        self.V[:, block] = V; self.Y[:, block] = Y; self.explore[0][:, block] = pl; self.best[:, block] = pu
        self.D[block] = V[c.start]
        y = Y[c.start]
        self.upper[block] = np.where(y <= self.cap - 1, y, np.inf)
        up = self.upper[block]
        width = np.minimum(up, self.cap) - self.D[block]
        if self.crit == "width":
            self.E[block] = width
        else:
            self.E[block] = np.maximum(np.minimum(width, self.gapb[block]), np.minimum(up, self.cap) - self.L)
        self.stale[block] = False

    def refresh(self, want):
        self.sync()
        todo = np.flatnonzero(self.stale & want)
        if len(todo) == 0: return False
        todo = todo[np.argsort(-self.E[todo], kind="stable")]
        block = list(todo[:BLOCK])
        if len(block) < BLOCK:
            others = np.flatnonzero(self.stale & self.open() & ~want)
            others = others[np.argsort(-self.E[others], kind="stable")]
            block += list(others[:BLOCK - len(block)])
        self.refresh_block(np.array(sorted(block)))
        return True

    def plan(self):
        n = self.counts.n
        th = np.maximum(1, np.ceil(n * self.growth).astype(np.int64))
        th = np.maximum(th, n+1)
        return Plan(self.explore, self.goal_state, int(math.ceil(4 * self.cap * (self.L + 1) / self.eps)), th)
