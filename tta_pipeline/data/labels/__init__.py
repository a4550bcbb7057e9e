"""Class names, their labels, and the class of each image.

- `class_map`: the classes of a benchmark in the order of their labels, pinned at the first use. Every shard set carries
  the hash of the map that it was made with.
- `label_files`: readers of files that datasets ship: lists of classes, the development kit's numbers, ground truths.
- `output_map`: the outputs of a model that stand for each class, if they are several.
- `shipped_lists`: lists of classes that come with the project, such as the 1,000 classes of ImageNet.

This package imports no other.
"""
