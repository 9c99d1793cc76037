"""Replays: the cells of a session or of a notebook run again in a fresh session, and their outputs are compared.

Words: a *past cell* is one that ran before, with the outputs that it had. A *difference* is a part of a cell's output
that is another one now. This room knows no HTTP.
"""
