"""Sources of images: the benchmark file's section for each kind in `kinds/`, and the readers that they open."""
