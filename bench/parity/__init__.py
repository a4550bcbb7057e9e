"""Our methods compared with the code of their authors, batch by batch: `python -m bench.parity --help`."""
