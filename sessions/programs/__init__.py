"""Whole programs: each runs to its end in a fresh kernel that is thrown away.

Words: an *outcome* is how a program ended, with its result; *artifacts* are files that it left.
Knows no provider.
"""
