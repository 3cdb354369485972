"""Comparisons of methods and goal rules over seeds, and the experiment runner that they share with experiments/."""
