"""Data kept on disk, in SQLite."""
