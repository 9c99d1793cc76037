"""What all dialects share: base handlers, WebSockets, uploads and downloads, OpenAPI.

This package knows no dialect.
"""
