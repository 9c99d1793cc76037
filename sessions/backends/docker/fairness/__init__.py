"""Processors: what each kernel uses, the weight of its tenant, and rest for kernels that nobody uses.

Words: a *round* measures all kernels once. Knows no session.
"""
