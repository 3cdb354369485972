"""Comparisons of methods and goal rules over seeds, and the runner that they share with ``experiments/``."""
