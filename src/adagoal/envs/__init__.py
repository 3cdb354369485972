"""Environments: built-in models, matrices, Gymnasium adapters, model-checker formats, and how an episode is played."""
