# %% [markdown]
# # Your own environment, and your own goals
#
# Any Gymnasium environment with discrete actions and discrete observations works without changes. Here is one in twenty
# lines: a lift with five floors and a door that sticks.

# %%
import gymnasium as gym
import numpy as np

import adagoal


class Lift(gym.Env):
    """Five floors. The lift moves with its door closed only, and one push in five does not move the door."""

    observation_space = gym.spaces.MultiDiscrete([5, 2])  # the floor, and whether the door is open
    action_space = gym.spaces.Discrete(3)  # down, up, door

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.floor, self.open = 0, 0
        return np.array([self.floor, self.open]), {}

    def step(self, action):
        if action == 2 and self.np_random.random() < 0.8:
            self.open = 1 - self.open
        elif action < 2 and not self.open:
            self.floor = min(max(self.floor + (1 if action == 1 else -1), 0), 4)
        return np.array([self.floor, self.open]), 0.0, False, False, {}


# %% [markdown]
# adagoal needs neither a reward nor a time limit. Draw random numbers from `self.np_random`, as Gymnasium asks. Then
# the same seed gives the same run, and an interrupted run continues exactly where it was.
#
# ## Check it first
#
# `check_env` steps the environment for a short time. It says what a run would do, and what would void a certificate.

# %%
check = adagoal.check_env(Lift())
print(*check.plan, sep="\n")
check.ok

# %% [markdown]
# ## Explore it
#
# States are numbered as they are met; you need not say how many there are.

# %%
result = adagoal.explore(Lift(), radius=12, epsilon=1.0, delta=0.1, seed=0)
print(result.status, "after", f"{result.steps:,}", "steps")
for row in result.table():
    print(f"{row['label']}: between {row['lower']:.2f} and {row['upper']:.2f} steps")

# %% [markdown]
# Each line is a state, under the name of its observation: floor and door. The top floor with an open door takes four
# moves and a push that works four times in five, 5.25 steps. The interval holds it.
#
# ## Your own goals
#
# A passenger wants a floor *with an open door*, not a certain state. Name such goals, each with a function of the
# observation:

# %%
goals = {
    "out on floor 2": lambda seen: seen[0] == 2 and seen[1] == 1,
    "out at the top": lambda seen: seen[0] == 4 and seen[1] == 1,
    "anywhere above": lambda seen: seen[0] > 0,
}
result = adagoal.explore(Lift(), radius=12, epsilon=1.0, seed=0, goals=goals)
for name in goals:
    print(f"{name}: between {result.certificate(name).lower:.2f} and {result.certificate(name).upper:.2f} steps")

# %% [markdown]
# A goal is reached when any of its states is ([more ways to say what a goal is](../goals.md)).
#
# ## Use a policy
#
# `act` takes the observation that the environment returned. The action `reset_action` asks for a reset.

# %%
env, policy = Lift(), result.policy("out at the top")
seen, _ = env.reset(seed=1)
path = [tuple(seen.tolist())]
while not goals["out at the top"](seen):
    action = policy.act(seen)
    seen = env.reset()[0] if action == policy.reset_action else env.step(action)[0]
    path.append(tuple(seen.tolist()))
print(path)

# %% [markdown]
# ## Measure it
#
# Play it many times, and compare with the certificate.

# %%
steps = []
for _ in range(300):
    (seen, _), taken = env.reset(), 0
    while not goals["out at the top"](seen):
        seen, taken = env.step(policy.act(seen))[0], taken + 1
    steps.append(taken)
low, up = result.certificate("out at the top")
print(f"measured {np.mean(steps):.2f} steps, certified {low:.2f} to {up:.2f}")

# %% [markdown]
# ## From the command line
#
# Put the class into a file, say `lift.py`, with one more line at its end:
#
# ```python
# gym.register("Lift-v0", entry_point="lift:Lift")
# ```
#
# Then name the file and the environment, in the folder of the file:
#
# ```console
# $ adagoal check lift:Lift-v0
# $ adagoal explore lift:Lift-v0 --radius 12 --epsilon 1 --out runs/lift
# $ adagoal play runs/lift --env lift:Lift-v0
# ```
#
# Next: [how to read a certificate](3-reading-a-certificate.py).
