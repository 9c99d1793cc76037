"""Calls of tools in code: functions outside of the sandbox that a cell calls.

Words: a *tool* is a function that the cell's client hands over with the cell, or a function of a *server* of the
operator. A *call* is one request of the kernel to run a tool; its *answer* comes from the client, or from who calls the
servers (`servers.py` is the contract). This room knows bounds, ids and answers, no HTTP.
"""
