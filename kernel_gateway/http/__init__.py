"""The way of each request and answer, for all dialects: handlers, WebSockets, uploads and downloads, OpenAPI.

Knows no dialect: what two of them share is here.
"""
