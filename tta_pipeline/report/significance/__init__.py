"""Whether one experiment is better than another by more than chance: paired tests on the kept predictions."""
