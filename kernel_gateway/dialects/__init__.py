"""The table of the gateway's dialects. To add a dialect, write a module here that exports `DIALECT`, and add its line.

Dialects do not import one another; code for several dialects is in `http/`.
"""

from kernel_gateway.dialects import (
    admin,
    agentrun,
    dify,
    dynamic_sessions,
    e2b,
    jupyter,
    librechat,
    mcp,
    native,
    open_terminal,
    ops,
    ragflow,
    web,
)

#: The first dialect that matches a request serves it. E2B's dialect matches only requests of E2B's clients, but on any
#: path; Jupyter's dialect matches all paths below `/api` that no dialect before it has.
DIALECTS = (
    e2b.PORTS,
    e2b.DIALECT,
    native.DIALECT,
    admin.DIALECT,
    jupyter.DIALECT,
    agentrun.DIALECT,
    ragflow.DIALECT,
    mcp.DIALECT,
    dify.DIALECT,
    dynamic_sessions.DIALECT,
    librechat.DIALECT,
    open_terminal.DIALECT,
    ops.DIALECT,
    web.DIALECT,
)
