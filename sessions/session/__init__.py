"""A session's life, from its registration to its end: states, kernels one after the other, executions in turn.

Words: an *owner* has a tenant, limits and one end, as sessions and sandboxes do; a *slot* has a session's kernel, its
start and its replacement; a *record* is what the ledger keeps of it. Knows no sandbox and no program.
"""
