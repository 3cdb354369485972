# %% [markdown]
# # Deep goals
#
# There are too many positions and poses for a table of goals. Here a neural network is the policy for all goals, and
# an ensemble of value functions estimates the distance $D$ and the error $E$ of every goal. The rule that picks goals
# is the same function as before.
#
# This page trains a point mass in the plane: small enough for a laptop, and with the interface of
# Gymnasium-Robotics, so that the same lines train a robot arm. It needs the extra `deep` (`pip install '.[deep]'`),
# and no other library of reinforcement learning.
#
# Run it as a notebook. In a script, put the call of `train` below `if __name__ == "__main__":`, because worker
# processes import the script.
#
# ## Train
#
# The walls are at 1.5, and the training goals are drawn from a square that reaches to 3. Three in four of them cannot
# be reached.

# %%
import tempfile

import adagoal

folder = tempfile.mkdtemp() + "/point"
result = adagoal.train(
    "point-mass",
    "adagoal-proportional",  # the goal rule: D(g) <= L, then in proportion to E(g)
    train_goals="scale=3",
    radius=15,
    steps=4_800,
    hidden=(32, 32),  # small networks and few updates, so that this page takes seconds
    batch=128,
    ensemble_batch=128,
    candidates=200,
    eval_episodes=40,
    workers=1,
    out=folder,
)
print(result.status)

# %% [markdown]
# On the command line this is `adagoal train point-mass --train-goals scale=3 --radius 15 ...`, with the progress on
# the screen and a report in the folder.
#
# ## Did it learn?

# %%
for row in result.history.rows:
    if row.get("success") is not None:
        print(f"after {row['steps']:>5,} steps: {row['success']:.0%} of the test goals reached")

# %% [markdown]
# ## Use the policy
#
# Loading a policy runs no code of the folder, and acting needs no JAX. The policy also estimates the distance to a goal
# and how far off this estimate may be.

# %%
trained = adagoal.load(folder)
policy = trained.policy
here, goal = [0.2, -0.1, 0.0, 0.0], [0.5, 0.5]
print("action:", policy(here, goal).round(2))
print(f"distance: {policy.distance(here, goal):.1f} steps, give or take {policy.uncertainty(here, goal):.1f}")

# %% [markdown]
# ## Test it where it was not trained
#
# These goals are from a square that is one and a half times as wide:

# %%
print(f"{trained.evaluate(100, test_goals='scale=1.5').final_success.mean():.0%} of the wider goals")

# %% [markdown]
# ## Certify it
#
# `certify` cuts the goal space into cells and plays until it can say of every cell whether the policy reaches its
# goals. All verdicts are right together with probability at least 0.95.

# %%
found = adagoal.certify(folder, radius=25, success=0.9, slack=0.1, halvings=2, workers=1)
for cell in found.cells:
    corners = ", ".join(f"{low:+.1f} to {high:+.1f}" for low, high in zip(cell.low, cell.high, strict=True))
    print(f"goals in {corners}: {cell.verdict}")

# %% [markdown]
# A cell whose goals the policy misses would be *refuted* ([certificates of policies](../certify.md)).
#
# ## If you train with another library
#
# A goal rule is a function of $D$, $E$ and what else is known. For Stable-Baselines3 there is a wrapper and a callback
# ([Stable-Baselines3](../sb3.md)). In a training loop of your own, call the rule yourself:

# %%
import numpy as np

from adagoal.goal_rules import GoalInfo, adagoal_proportional

nothing = np.zeros(3)
known = GoalInfo(
    D=np.array([3.0, 8.0, 40.0]),  # what your critics say about three candidate goals
    E=np.array([0.5, 2.0, 9.0]),
    L=15.0,
    eligible=np.ones(3, bool),
    visits=nothing,  # this rule does not look at the rest
    attempts=nothing,
    successes=nothing,
    recent=nothing,
    previous=nothing,
)
weights = adagoal_proportional(known)
weights / weights.sum()

# %% [markdown]
# The third goal is the most uncertain one, but it is believed out of reach, so it has weight 0.
#
# [The guide](../guide.md) says how to choose the numbers, and [the theory](../theory.md) why the certificates are true.
