"""Methods for linear mixtures: d known kernels and an unknown combination of them."""
