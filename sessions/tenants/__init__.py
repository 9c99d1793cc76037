"""Limits and use of each tenant."""
