# %% [markdown]
# # Reading a certificate
#
# This page says what a certificate promises, under which conditions, and how to check it.
#
# ## What is promised
#
# With probability at least $1 - \delta$ all of these hold together:
#
# 1. Every goal that can be reached within $L$ expected steps is in `result.goals`.
# 2. Nothing in `result.goals` needs more than $L + \varepsilon$.
# 3. Each policy is at most $\varepsilon$ steps slower than the best one for its goal.
# 4. Every interval is right: no policy needs less than `lower`, and the returned one needs at most `upper`.
#
# The probability is over the randomness of the run. Steps are averages over episodes; nothing is said about a single
# one.

# %%
import adagoal

settings = {"env_args": {"rows": 3, "cols": 4}, "seed": 1}
result = adagoal.explore("grid", radius=5, epsilon=0.5, **settings)
for goal in result.goals[:4]:
    low, up = result.certificate(goal)
    print(f"goal {goal}: [{low:.2f}, {up:.2f}], at most {result.error(goal):.2f} steps worse than the best policy")

# %% [markdown]
# ## The interval and the error
#
# `error` can be smaller than the width of the interval. A policy can be proved best before its value is known: it is
# enough that every other action is proved to be worse.
#
# ## A run that was cut short
#
# The intervals hold at any time, not only at the end. Here is a run that ran out of steps.

# %%
short = adagoal.explore("grid", radius=5, epsilon=0.5, budget=2_000, **settings)
print(short.status, "spent; open goals:", short.open_goals)
for run in (short, result):
    print("goal 2: [{:.2f}, {:.2f}]".format(*run.certificate(2)))

# %% [markdown]
# The first interval is wider, and also right. `open_goals` are the goals whose error is still above $\varepsilon$. A
# run with a folder (`out="runs/grid"`) can be continued: `adagoal.resume("runs/grid", budget=1_000_000)`.
#
# ## Growing the radius
#
# If you do not know how far to look, use `radius="auto"`. The run doubles the radius until the budget is spent, and
# answers for the largest radius that it finished.

# %%
grown = adagoal.explore("grid", radius="auto", budget=100_000, **settings)
print(grown.status, "for the radius", grown.certified_radius, "-", len(grown.goals), "goals")

# %% [markdown]
# ## Checking it
#
# There are two ways. `audit` compares with the exact model, if it is known. `play` needs no model: it plays the
# policies and shows the measured steps, with a confidence interval, beside the certificate.

# %%
print(adagoal.audit(result).table().splitlines()[-1])
for trial in adagoal.play(result, result.goals[1:3], episodes=200):
    low, high = trial.interval
    print(f"goal {trial.goal}: measured {trial.mean:.2f}, in [{low:.2f}, {high:.2f}]; agrees: {trial.agrees}")

# %% [markdown]
# ## What voids it
#
# The proof rests on assumptions ([all of them](../guide.md#what-voids-it)). If one fails, the intervals mean nothing.
# These are the most important ones:
#
# - **The environment must not change.** Wear, drift and other learning agents change it.
# - **The observation must be the whole state.** If two situations look alike, there are no probabilities to learn.
# - **A reset must lead to the start**, or draw it in the same way each time.
#
# adagoal tests all three while it steps an environment. If the data contradict one, the status is `void`, and
# `result.void` has the reason. Here is a floor that wears out: the longer it is used, the slipperier it gets.

# %%
import gymnasium as gym


class Wearing(gym.Env):
    """A corridor whose floor wears out with every step taken since the environment was made."""

    observation_space, action_space = gym.spaces.Discrete(6), gym.spaces.Discrete(2)
    used = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action):
        self.used += 1
        if self.np_random.random() > min(0.9, self.used / 4000):
            self.place = min(max(self.place + (1 if action else -1), 0), 5)
        return self.place, 0.0, False, False, {}


worn = adagoal.explore(Wearing(), radius=20, epsilon=1.0, budget=20_000)
print(worn.status)
print(next(reason for reason in worn.void if "stationary" in reason))

# %% [markdown]
# The tests can detect a violation but cannot rule one out: a small change may go unnoticed.
#
# Next: [linear mixtures](4-linear-mixtures.py), for environments of which you have simulators.
