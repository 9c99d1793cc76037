"""The words of all rooms: errors, frozen values, languages, names, limits, tasks, bounded JSON, stages of a start.

Words: rooms pass *values* to each other, and values never change; a *notice* tells a client what happened to the
variables. This room imports no other room of the domain.
"""
