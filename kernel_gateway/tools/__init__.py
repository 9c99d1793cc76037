"""The operator's servers of tools, which speak MCP: the gateway calls them for code in cells.

`servers.py` decides who may call what, and records it. `client.py` speaks to one server, through `bounded.py`, which
limits what a server may send. `docs/operating.md` says how servers are configured, `docs/api.md` how code uses them.
"""
