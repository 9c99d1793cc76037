"""Whole programs: each runs to its end in a fresh kernel that is thrown away.

Words: an *outcome* is how a program ended, with its output and its return value. *Artifacts* are files that a program
left. This room knows no provider.
"""
