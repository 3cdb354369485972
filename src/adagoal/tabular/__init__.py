"""Tabular estimates beside the certified explorer: the paper's AdaGoal-UCBVI and a Bayesian method."""
