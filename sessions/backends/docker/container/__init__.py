"""The containers of kernels: how they are made, used, paused, watched and removed.

Words: a *handle* is one container, as the other rooms see it; a *lost* container is one that the engine may have made
without reporting it. This room does not know why a container starts, nor what isolates it beyond its profile.
"""
