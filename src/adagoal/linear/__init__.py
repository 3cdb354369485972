"""Linear mixture worlds: d known kernels, an unknown combination of them."""
