"""One cell in flight: its events, its end and its outputs; and the transcript of all cells.

Words: a *cell* is code that runs once in a kernel, and ends exactly once. An *execution* is a cell of the API. An
*orphan* is a cell that an earlier gateway started. This room knows no session: each cell is given its kernel.
"""
