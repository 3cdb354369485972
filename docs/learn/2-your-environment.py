# %% [markdown]
# # Your own environment, and your own goals
#
# Any Gymnasium environment with discrete actions works as it is. Here is one in twenty lines: a lift with five floors
# and a door that sticks.

# %%
import gymnasium as gym

import adagoal


class Lift(gym.Env):
    """Five floors. The lift moves with its door closed only, and one push in five does not move the door."""

    observation_space = gym.spaces.Discrete(10)  # 2 * floor + (1 if the door is open)
    action_space = gym.spaces.Discrete(3)  # down, up, door

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.floor, self.open = 0, 0
        return 2 * self.floor + self.open, {}

    def step(self, action):
        if action == 2 and self.np_random.random() < 0.8:
            self.open = 1 - self.open
        elif action < 2 and not self.open:
            self.floor = min(max(self.floor + (1 if action == 1 else -1), 0), 4)
        return 2 * self.floor + self.open, 0.0, False, False, {}


# %% [markdown]
# There is no reward worth speaking of, and no time limit. The library needs neither. Draw random numbers from
# `self.np_random`, as Gymnasium asks: then the same seed gives the same run, and a run that was interrupted can go on
# exactly where it was.
#
# ## Try it before you run it
#
# `check_env` steps the environment for a moment. It says what a run would do, and what could spoil a certificate.

# %%
check = adagoal.check_env(Lift())
print(*check.plan, sep="\n")
check.ok

# %% [markdown]
# ## Explore it

# %%
result = adagoal.explore(Lift(), radius=12, epsilon=1.0, delta=0.1, seed=0)
print(result.status, "after", f"{result.steps:,}", "steps")
for goal in result.goals:
    low, up = result.certificate(goal)
    print(f"floor {goal // 2}, door {'open  ' if goal % 2 else 'closed'}: between {low:5.2f} and {up:5.2f} steps")

# %% [markdown]
# The top floor with an open door takes four moves and a push that works four times in five: 5.25 steps. The interval
# holds it.
#
# ## Only the goals that you care about
#
# Often not every state is a goal. Name those that are, and the run spends nothing on the others.

# %%
doors = [2 * floor + 1 for floor in range(5)]
result = adagoal.explore(Lift(), radius=12, epsilon=1.0, seed=0, goal_space=doors)
print(result.goals, "after", f"{result.steps:,}", "steps")

# %% [markdown]
# ## Use a policy
#
# A policy is a function from an observation of this environment to an action. The number after the last action is the
# reset.

# %%
env, policy = Lift(), result.policy(9)
state, _ = env.reset(seed=1)
path = [state]
while state != 9:
    action = policy(state)
    state = env.reset()[0] if action == result.reset_action else env.step(action)[0]
    path.append(state)
path

# %% [markdown]
# ## Measure it
#
# `play` does the same many times over and puts the measured steps beside the certified ones.

# %%
(trial,) = adagoal.play(result, [9], env=Lift(), episodes=300, seed=2)
low, up = result.certificate(9)
print(f"measured {trial.mean:.2f} steps, certified {low:.2f} to {up:.2f}")
trial.agrees

# %% [markdown]
# ## From the command line
#
# Register the environment with Gymnasium in a module of yours, say `lift.py`, and name both:
#
# ```console
# $ adagoal check lift:Lift-v0
# $ adagoal explore lift:Lift-v0 --radius 12 --epsilon 1 --out runs/lift
# $ adagoal play runs/lift --env lift:Lift-v0
# ```
#
# Next: [how to read a certificate](3-reading-a-certificate.py).
