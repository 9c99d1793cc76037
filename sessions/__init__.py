"""The domain: tenants, sessions, kernels, executions. It knows no HTTP and reads no environment.

A room is a package. `tests/test_layers.py` has the rooms and the arrows that are allowed between them.
"""
