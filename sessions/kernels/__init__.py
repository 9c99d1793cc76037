"""One kernel: its channels, its life, and the kernels that wait to be leased.

Words: a *connection* is the gateway's end of all channels of a kernel; *warm* kernels have started for nobody yet.
Knows neither cells nor sessions.
"""
