"""Datasets: names, severities and archives of robustness datasets, one YAML file per dataset in `sets/`."""
