"""Shift sets: names, severities and archives of robustness data sets, one YAML file per data set in `sets/`."""
