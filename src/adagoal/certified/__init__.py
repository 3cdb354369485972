"""The certified explorer: confidence sets, bounds per goal, action gaps, and when to plan (docs/theory.md).

The section "Symbols" of that page explains the names from the paper and the shapes: X, K, V, Y, top, T_low, ...
"""
