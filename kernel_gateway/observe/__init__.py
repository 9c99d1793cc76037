"""What operators see: metrics, logs, and the event loop's lag.

Knows no request and no dialect: it is told.
"""
