"""How fast loaders read a shard set, without a model: ours and other people's, measured alike.

A *way* is a loader with a number of threads. Each pass of each way has a process of its own, started for it; the ways
take turns, so that the machine's moods hit all alike; what is told is the median of the repeats, with the range.
"""
