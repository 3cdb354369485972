"""The certified explorer: confidence sets, bounds per goal, action gaps, and when to plan (docs/theory.md)."""
