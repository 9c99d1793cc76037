"""Runners for providers that have only an interpreter. They import nothing of this project."""
