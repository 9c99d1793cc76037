"""Connections from the gateway to servers that code has started in a sandbox.

Words: a *server* is a program of user code that listens on a port of its sandbox. A *relay* is the tool in one
container that connects to servers, and carries all connections between them and the gateway. This room knows bytes, no
HTTP.
"""
