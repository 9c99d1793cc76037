"""The table of the gateway's dialects. To add one, write a module here that exports `DIALECT`, and add its line."""

from kernel_gateway.dialects import admin, agentrun, jupyter, native, ops, ragflow, web

#: the first dialect that matches a path serves it; Jupyter's matches all of `/api` that no other dialect has
DIALECTS = (native.DIALECT, admin.DIALECT, jupyter.DIALECT, agentrun.DIALECT, ragflow.DIALECT, ops.DIALECT, web.DIALECT)
