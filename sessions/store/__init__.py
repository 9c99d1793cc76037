"""Data on disk, in SQLite: the ledger of sessions, the audit and the use, templates, tenants' own limits.

Words: a *record* is a row; to *sync* a database is to write SQLite's log safely to the disk. This room knows no kernel
and no session.
"""
