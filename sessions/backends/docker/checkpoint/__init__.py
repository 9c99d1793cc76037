"""A sandbox's memory on disk: gVisor writes it and continues from it; it is encrypted, packed, and tried.

Words: an *image* is one directory with a sandbox's memory; a *trial* shows that an image can be continued.
Knows neither sessions nor why a checkpoint is taken.
"""
