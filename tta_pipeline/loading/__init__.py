"""From a manifest to batches of images: order the samples, read them at known offsets, and decode them."""
