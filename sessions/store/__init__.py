"""Data kept on disk, in SQLite: the ledger of sessions, the audit, templates.

Words: a *record* is a row; to *sync* is to have SQLite's log on the disk. Knows no kernel and no session.
"""
