"""Sweeps over all goals at once."""
