"""Speed of loaders on a shard set, without a model: ours and third-party loaders, measured in the same way.

A configuration is a loader with a number of threads. Each pass of each configuration runs in a new process. The
configurations take turns, so that fluctuations of the machine affect all of them. The result is the median of the
repeats, with the range.
"""
