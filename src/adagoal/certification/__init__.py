"""Certification of policies: in which cells of goals or starts does a policy succeed, with which guarantee?

    certifier     cells, bets and verdicts: the engine
    certificate   the claim, the cells with their verdicts, the statement in words
    value_spaces  what is varied: a box, a list or a sampler of goals or starts; the tree of its cells
    episodes      put an environment into a goal or start, play the policy, in several processes, and judge success
    policies      functions and Stable-Baselines3 models as policies

This package knows no training run and imports no JAX. PyTorch is imported only to load a Stable-Baselines3 model.
"""
