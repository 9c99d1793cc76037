"""One cell in flight: its events, its end and its outputs; and the transcript of all cells.

Words: a *cell* ends exactly once; an *execution* is a cell of the API; an *orphan* was started by an earlier gateway.
Knows no session: it is given a kernel.
"""
