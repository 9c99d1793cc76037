"""A session's life, from its registration to its end: states, kernels one after the other, executions in turn.

Words: an *owner* is a session or a sandbox: it has a tenant, limits and one end. A *slot* holds a session's kernel,
starts it and replaces it. A *record* is what the ledger keeps of a session. This room knows no sandbox and no program.
"""
