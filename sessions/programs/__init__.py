"""Whole programs: each runs to its end in a fresh kernel that is thrown away."""
