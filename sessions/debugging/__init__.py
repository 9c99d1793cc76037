"""Debugging of one cell of a session: breakpoints, steps, frames and their variables; and frames after an exception.

Words are those of the Debug Adapter Protocol (DAP): a cell is *stopped* at a breakpoint, a *frame* is a call that has
not returned. *Post mortem* is the look at the frames of an exception that has ended a cell. This room knows no HTTP and
no session; a session has one `Debugger`.
"""
