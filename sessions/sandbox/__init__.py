"""Sandboxes: sessions that share one workspace, their commands, watched directories, pause, copies and use.

Words: a *command* is a shell command, which counts as an execution. An *attached* command runs on its own, while
clients listen and leave. A *moment* is a copy of a whole sandbox on disk, and a *snapshot* is a moment that is kept.
This room uses no words of the dialects.
"""
