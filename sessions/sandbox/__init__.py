"""Sandboxes: sessions that share one workspace, their commands, watched directories, pause and use.

Words: a *command* is a shell command, which counts as an execution. An *attached* command runs on its own, while
clients listen and leave. This room uses no words of the dialects.
"""
