"""The HTTP service over `sessions`. It knows dialects and settings, and no kernels."""
