"""What goes on without a client: culling, sleep in turns, strays, and the take-over from an earlier gateway.

Words: to *cull* is to end what is idle or too old; a *stray* is a kernel that belongs to no session.
Nothing of the domain knows it; the service starts it.
"""
