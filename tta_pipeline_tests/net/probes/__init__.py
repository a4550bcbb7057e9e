"""Programs that the net runs with the code under test, each by its path, so that PYTHONPATH chooses the code."""
