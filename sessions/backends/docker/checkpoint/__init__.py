"""A sandbox's memory on disk. gVisor writes it, and restores a sandbox from it. It may be encrypted, packed and tried.

Words: an *image* is a directory with a sandbox's memory; a *trial* restores an image to show that this is possible; a
sandbox is *held* while its processes are stopped without the engine's knowledge. This room knows no session, and not
why an image is written.
"""
