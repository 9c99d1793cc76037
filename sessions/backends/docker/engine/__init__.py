"""Engine and host: calls in lanes, the breaker, versions; a container's input and output, control group, timers.

Words: a *lane* is a kind of calls with a bound of its own; the *breaker* is open while the engine does not answer.
Knows no kernel: it runs what it is given.
"""
