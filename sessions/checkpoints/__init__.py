"""A kernel's memory and files on disk: how they are written, which are kept, and sleep.

Words: a *checkpoint* is a kernel's memory and files on disk. An *image* is what the backend has written for it. A
kernel is *asleep* when its memory was written to disk and its container has ended. This room knows no session.
"""
