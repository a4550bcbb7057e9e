"""From a manifest to batches of images: which samples in which order, read at known offsets and decoded."""
