"""Limits and use of each tenant, and what all tenants have together: turns, memory, disk, kept outputs.

Words: a *quota* belongs to one tenant, a *budget* to all of them. Knows no kernel and no session.
"""
