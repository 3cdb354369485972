"""Certification of policies: in which cells of goals or starts does a policy succeed, with which guarantee?

    certifier     cells, bets and verdicts: the engine
    certificate   the claim, the cells with their verdicts, the statement in words
    cell_tree     the tree of cells
    value_spaces  what is varied: a box, a list or a sampler of goals or starts
    episodes      play a policy in a Gymnasium environment, one episode per goal or start
    criteria      what counts as a success
    start_setters put an environment into a start
    policies      functions and Stable-Baselines3 models as policies
    players       the processes that play

This package knows no training run and imports no JAX. PyTorch is imported only to load a Stable-Baselines3 model.
"""
