"""Speed of three readers on a shard set: ours, webdataset, and loose files; without a model, or in a forward pass.

A configuration is a reader with a number of threads. The configurations take turns, so that fluctuations of the machine
affect all of them. The result is the median of the repeats, with the range. Without a model, each pass of each
configuration runs in a new process.
"""
