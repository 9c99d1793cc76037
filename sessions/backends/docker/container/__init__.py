"""The containers of kernels: how they are made, used, paused, watched and removed.

Words: a *handle* is one container for the domain; *lost* is a container that could not be removed yet.
Knows neither why a container starts nor what isolates it beyond its profile.
"""
