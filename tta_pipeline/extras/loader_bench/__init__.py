"""How fast loaders read a shard set, without a model: ours and third-party ones, measured in the same way.

A *way* is a loader with a number of threads. Each pass of each way runs in a new process; the ways take turns, so that
fluctuations of the machine affect all of them; the result is the median of the repeats, with the range.
"""
