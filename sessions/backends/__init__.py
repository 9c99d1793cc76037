"""Where kernels can run; see `base.py` for what that takes. Backends do not know one another."""
