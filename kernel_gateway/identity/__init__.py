"""Identifies the caller of a request by key or signature, and decides which web pages may use the gateway.

Words: a *caller* is the tenant and the role of a credential; a *nonce* lets a signed request be used only once.
This package knows no handler and no dialect.
"""
