"""Measurements that need a GPU, in one command of less than nine minutes: `python -m bench.gpu_day`."""
