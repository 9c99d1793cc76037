"""A kernel's memory and files on disk: how they are written, which are kept, and sleep.

Words: a *checkpoint* is a kernel's memory and files on disk; a kernel is *asleep* when it was ended for its checkpoint.
Should know no session: three imports are still to be turned (`tests/test_layers.py`).
"""
