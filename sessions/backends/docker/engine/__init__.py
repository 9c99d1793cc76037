"""The engine and its host: calls in lanes, breaker, versions; a container's input and output, control group, timers.

Words: a *lane* is a kind of calls with its own threads and time limits; the *breaker* is open while the engine does not
answer. This room knows no kernel: it runs the functions that it gets.
"""
