"""The ways to speak to the gateway, in one table. To add one: a module here that exports `DIALECT`, and its line."""

from kernel_gateway.dialects import admin, agentrun, jupyter, native, ops, ragflow, web

#: the first that has a path serves it; Jupyter's has all of `/api` that nobody else has
DIALECTS = (native.DIALECT, admin.DIALECT, jupyter.DIALECT, agentrun.DIALECT, ragflow.DIALECT, ops.DIALECT, web.DIALECT)
