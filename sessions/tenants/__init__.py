"""The limits and the use of each tenant, and what all tenants share: turns, memory, disks, kept outputs.

Words: a *quota* limits one tenant, a *budget* limits all tenants together, and a *share* is the part of a budget that
one tenant may have. This room knows no kernel and no session.
"""
