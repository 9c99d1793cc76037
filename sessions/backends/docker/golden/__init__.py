"""Golden images, from which new kernels are restored with their modules already imported.

Words: sandboxes of the same *shape* can be restored from the same golden image; the *workshop* makes and proves golden
images; the *supply* has the images that are ready. This room knows no session: a golden image has no data of a tenant.
"""
