"""Backends, which run kernels; `base.py` is their contract. Backends do not import one another."""
