"""Environments with discrete states: built-in models, Gymnasium, mixtures."""
