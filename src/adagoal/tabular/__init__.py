"""The paper's AdaGoal-UCBVI, a Bayesian method, and probabilities of reaching goals within k steps."""
