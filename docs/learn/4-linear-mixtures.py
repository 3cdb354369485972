# %% [markdown]
# # Linear mixtures
#
# You have a few simulators, and the real environment behaves like a mixture of them: sometimes like one, sometimes like
# another. Wind regimes, friction levels and demand patterns are examples. In formulas,
#
# $$p(s' \mid s, a) = \sum_{i=1}^{d} \theta_i \, p_i(s' \mid s, a),$$
#
# where the kernels $p_i$ are known and the weights $\theta$ are not. There are only $d$ numbers to learn, however many
# states there are.
#
# ## Two simulators
#
# A grid without slip, and the same grid in which a move slips with probability 0.6:

# %%
import adagoal
from adagoal.envs import toy_models

simulators = [toy_models.open_grid_model(rows=6, cols=6, slip=slip) for slip in (0.0, 0.6)]
env = adagoal.mixture(simulators, theta=[0.7, 0.3])

# %% [markdown]
# The learner knows the simulators, but not `theta`. With a real environment, use
# `adagoal.mixture(simulators, world=env)` instead.
#
# ## Explore it

# %%
result = adagoal.explore(env, radius=7, epsilon=1.0, method="likelihood", seed=0)
print(result.status, "after", f"{result.steps:,}", "steps;", len(result.goals), "goals")

# %% [markdown]
# ## What was learnt
#
# The result has intervals that contain all weights together with probability $1 - \delta$:

# %%
for i, (estimate, low, high) in enumerate(result.arrays["theta"]):
    print(f"simulator {i}: {estimate:.2f}, in [{low:.2f}, {high:.2f}]")

# %% [markdown]
# ## What it saves
#
# The tabular method does not use the simulators. It must try every action in every square.

# %%
blind = adagoal.explore(env, radius=7, epsilon=1.0, method="certified", seed=0, budget=1_000_000)
print(blind.status, "after", f"{blind.steps:,}", "steps")

# %% [markdown]
# The gap grows with the number of states: with $S = 10{,}000$ the linear method takes as many steps as with
# $S = 1{,}000$ ([figures and tables](../linear.md)).
#
# ## When the environment is no mixture
#
# Then nothing is promised. A test of the fit makes the run void if the data contradict the mixture. Here the real
# environment is more slippery than any simulator.

# %%
stray = adagoal.mixture(simulators, world=toy_models.open_grid_model(rows=6, cols=6, slip=0.9))
result = adagoal.explore(stray, radius=7, epsilon=1.0, method="likelihood", seed=0, budget=50_000)
print(result.status)
print(*result.void, sep="\n")

# %% [markdown]
# Next: [deep goals](5-deep-goals.py).
