"""Sandboxes: sessions that share one workspace, their commands, watched directories, pause and use.

Words: a *command* is a shell command as an execution; *attached* are commands that clients listen to and leave.
Knows no dialect's words for them.
"""
