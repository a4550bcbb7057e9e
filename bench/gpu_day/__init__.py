"""What only a machine with a GPU can show, in one command of less than nine minutes: `python -m bench.gpu_day`."""
