"""Who asks: keys, signatures, and the web pages that may use the gateway.

Words: a *caller* is a tenant, and perhaps an admin; a *nonce* makes a signed request good once.
Knows no handler and no dialect.
"""
