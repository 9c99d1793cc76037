"""Channel clients: raw Jupyter clients that send their own messages to a kernel.

Words: the *hub* has all channel clients of one session. A *subscription* is the message queue of one client. This room
knows no session.
"""
