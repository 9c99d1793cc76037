"""The way from a client to a server that code has started: a reverse proxy, its rules for headers, and signed links.

Words: a *server* and its *port* are as in `sessions/ports/`. A *link* is a URL with a signature, which ends. This room
knows HTTP/1.1 on both sides, and no dialect: a dialect's handler says whose port a request is for.
"""
