# %% [markdown]
# # Your first certificate
#
# An agent is in an environment that it does not know. There is no reward. Which goals can it reach reliably, how, and
# when has it learnt enough to stop? This page answers these questions for a small environment. It runs in seconds.

# %%
import adagoal

result = adagoal.explore("two-room", radius=20, epsilon=1.0, delta=0.1, seed=0)
print(result.status)

# %% [markdown]
# *certified* means that the run stopped by itself, because it can prove its answer. You gave it three numbers:
#
# - **radius** $L = 20$: how far to look. A goal counts if some policy needs at most 20 steps to it, on average.
# - **epsilon** $\varepsilon = 1$: how exact the answer must be, in steps.
# - **delta** $\delta = 0.1$: the probability with which the whole answer may be wrong.
#
# ## The goals
#
# In this environment every square of a map is a state, and every state is a goal. These can be reached within 20 steps:

# %%
print(len(result.goals), "goals:", result.goals)

# %% [markdown]
# Nothing that can be reached within $L$ steps is missing, and nothing in the list needs more than $L + \varepsilon$.
#
# ## The certificate
#
# Each goal has an interval for the expected number of steps from the start.

# %%
goal = result.goals[-1]
result.certificate(goal)

# %% [markdown]
# No policy needs fewer steps than `lower`, on average. The returned policy needs at most `upper`. All intervals of the
# run are right together, with probability at least 0.9.
#
# ## The policy
#
# A policy is a function from a state to an action.

# %%
policy = result.policy(goal)
policy(0), result.reset_action

# %% [markdown]
# The second number is the *reset*: an action that adagoal adds to every environment. It leads back to the start and
# costs a step. A policy may use it, for example if it cannot reach the goal from where it is.
#
# ## How much it took

# %%
print(f"{result.steps:,} steps in {result.episodes:,} episodes")

# %% [markdown]
# In each episode the agent plays towards the goal about which it is most uncertain, among those that may be within
# reach. When no such goal is uncertain by more than $\varepsilon$, it stops.
#
# ## Is it true?
#
# This environment is built in, so its exact model is known. The agent never saw it. `audit` solves the model and checks
# every claim.

# %%
adagoal.audit(result).ok

# %% [markdown]
# ## On the command line
#
# The same run, with a folder that keeps everything and a report to look at:
#
# ```console
# $ adagoal explore two-room --radius 20 --epsilon 1 --delta 0.1 --seed 0 --out runs/rooms
# $ adagoal audit runs/rooms
# ```
#
# Open `runs/rooms/report.html` in a browser.
#
# Next: [your own environment](2-your-environment.py).
