"""Worlds to explore: built-in models with a compiled simulator, and any discrete Gymnasium environment."""
