"""The table of the gateway's dialects. To add one, write a module here that exports `DIALECT`, and add its line.

Dialects do not know one another; what two of them share is in `http/`.
"""

from kernel_gateway.dialects import admin, agentrun, e2b, jupyter, native, ops, ragflow, web

#: The first dialect that matches a request serves it. E2B's matches only requests of its clients, but on any path;
#: Jupyter's matches all of `/api` that no other dialect has.
DIALECTS = (
    e2b.DIALECT,
    native.DIALECT,
    admin.DIALECT,
    jupyter.DIALECT,
    agentrun.DIALECT,
    ragflow.DIALECT,
    ops.DIALECT,
    web.DIALECT,
)
