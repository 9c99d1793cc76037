"""The ways to speak to the gateway, in one table. To add one: a module here that exports `DIALECT`, and its line."""

from kernel_gateway.dialects import agentrun, jupyter, native, ops

DIALECTS = (native.DIALECT, jupyter.DIALECT, agentrun.DIALECT, ops.DIALECT)
