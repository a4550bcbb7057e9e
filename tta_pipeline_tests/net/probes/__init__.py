"""Programs that the net runs by their path with the code under test, which PYTHONPATH selects."""
