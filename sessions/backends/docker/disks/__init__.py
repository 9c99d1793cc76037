"""Workspaces on disk, and the container that makes them.

Words: a *workspace* is a set of volumes with limits; the *helper* is the one container that may use loop devices.
Knows no kernel.
"""
