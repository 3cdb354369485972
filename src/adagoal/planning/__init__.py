"""Compiled planners: value iteration on known models, and bounds on unknown ones for many goals at once."""
