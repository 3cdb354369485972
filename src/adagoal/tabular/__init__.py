"""The tabular world: counts, the certified estimates (the default), the paper's estimates, and their kernels."""
