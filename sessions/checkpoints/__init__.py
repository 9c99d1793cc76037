"""A kernel's memory and files on disk: how they are written, which are kept, and sleep.

Words: a *checkpoint* is a kernel's memory and files on disk; a kernel is *asleep* when it was ended for its checkpoint.
Knows no session: a session asks it.
"""
