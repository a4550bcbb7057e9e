"""Size limits of files that several packages read whole; every other limit stands where its file is read."""

MAX_FILE_BYTES = 2**30
"""Most bytes of an image file: the largest allowed image takes 0.6 GB as three float32 channels."""
MAX_LIST_BYTES = 2**28
"""Most bytes of a list of samples; a list of ILSVRC's training set, with classes, takes 60 MB."""
