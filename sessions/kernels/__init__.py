"""One kernel: its channels, its start and end, and the pool of warm kernels.

Words: a *connection* is the gateway's end of all channels of a kernel; a *warm* kernel was started ahead of need; to
*lease* a kernel is to give it to a session for good. This room knows neither cells nor sessions.
"""
