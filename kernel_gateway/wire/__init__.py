"""Accepts connections, limits them and what clients send on them, and passes requests to the application.

This package knows no handler, no key and no dialect.
"""
