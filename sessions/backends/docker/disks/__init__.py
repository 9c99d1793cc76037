"""Workspaces on disk, and the container that makes them.

Words: a *workspace* is a set of volumes with limited sizes; a *disk* is the image file with the content of one volume;
the *helper* is the only container that may use loop devices. This room knows no kernel.
"""
