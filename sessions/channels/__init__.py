"""Channel clients: raw Jupyter clients that send their own messages to a kernel.

Words: the *hub* has all clients of one kernel, a *subscription* is one client's queue. Knows no session.
"""
