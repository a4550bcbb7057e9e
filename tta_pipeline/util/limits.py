"""Most bytes of files that several rooms read whole; any other limit stands where its file is read."""

MAX_FILE_BYTES = 2**30
"""Most bytes of an image's file: the most pixels that are read take 0.6 GB, as three colours in float32."""
MOST_LISTED_BYTES = 2**28
"""Most bytes of a list of samples; one of ILSVRC's training set, with classes, takes 60 MB."""
