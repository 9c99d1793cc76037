"""The words of all rooms: errors, frozen values, languages, names, limits, tasks, bounded JSON, stages of a start.

Words: *values* are what rooms hand to each other, and never change; a *notice* says what became of the variables.
Knows no other room of the domain.
"""
