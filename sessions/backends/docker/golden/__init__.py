"""Golden images: kernels that are restored with everything imported, in place of being started.

Words: a *shape* is what sandboxes must share to be restored from one image; the *workshop* takes and proves images, the
*supply* has those that are ready. Knows no session: nothing in a golden image is anybody's.
"""
