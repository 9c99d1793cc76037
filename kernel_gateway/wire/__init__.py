"""From a socket to a request: connections, their bounds, and what clients send on them.

Knows no handler, no key and no dialect.
"""
