"""Shift sets: the names, severities and archives of a robustness data set, each a YAML file in `sets/`."""
