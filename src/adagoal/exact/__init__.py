"""Ground truth of a known model: the exact solver and the audit. No learner imports this package."""
