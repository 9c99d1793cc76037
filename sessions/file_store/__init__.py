"""Files that belong to a tenant and to no session: clients send them before there is one, or fetch them after its end.

Words: an *owner* is who of a tenant may use a file; a *batch* is what one upload or one run has stored. This room
knows no HTTP, no kernel and no session.
"""
