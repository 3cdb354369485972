"""Run by planning.py inside .venv-rlberry: planning time per episode of rlberry-scool's UCBVI for one goal.

    python planning_rlberry.py MODEL.npy HORIZON EPISODES

The agent plays in the model p [S, A, S] with a reset action, reward 1 at the last state. Only its call of backward
induction is timed, as it is (loops in Python) and compiled with Numba, which its authors' earlier versions did; the
interaction in Python is left out.
"""

import json
import statistics
import sys
import time

import gymnasium
import numba
import numpy as np
from rlberry.spaces import Discrete
from rlberry_scool.agents.ucbvi import ucbvi

p = np.load(sys.argv[1])
horizon, episodes = int(sys.argv[2]), int(sys.argv[3])
n_states, n_actions, _ = p.shape


class Model(gymnasium.Env):
    """The known model as an environment; action number A is the reset."""

    observation_space = Discrete(n_states)
    action_space = Discrete(n_actions + 1)
    reward_range = (0.0, 1.0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return 0, {}

    def step(self, action):
        reset = action == n_actions
        self.state = 0 if reset else int(self.np_random.choice(n_states, p=p[self.state, action]))
        return self.state, float(self.state == n_states - 1), False, False, {}


plan = ucbvi.backward_induction_reward_sd
compiled = numba.njit(plan)
times = {"as_it_is": [], "compiled": []}


def timed(*arguments):
    for name, function in (("as_it_is", plan), ("compiled", compiled)):
        began = time.perf_counter()
        function(*arguments)
        times[name].append(time.perf_counter() - began)


ucbvi.backward_induction_reward_sd = timed
ucbvi.UCBVIAgent(Model(), horizon=horizon).fit(episodes + 1)
print(json.dumps({name: statistics.median(series[1:]) for name, series in times.items()}))  # the first call compiles
