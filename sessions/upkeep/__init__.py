"""Work that no client asks for: culling, sleep of idle sessions, strays, and the take-over from an earlier gateway.

Words: to *cull* is to end a session or sandbox that is idle or too old. A *stray* is a kernel that belongs to no
session, sandbox or pool. No other room of the domain knows this room; the service starts its work.
"""
