"""What operators see: metrics, the alerts that follow from them, logs, and the event loop's lag.

This package knows no request and no dialect: its callers pass the values.
"""
