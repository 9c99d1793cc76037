"""Backends, which run kernels. `base.py` is their contract. Backends do not import one another.

Words: a *launch* is the order to start a kernel, a *handle* is a running container or process, an *ability* is
something that not every backend can do, such as sleep. This room knows no message of a kernel, and no session.
"""
