"""What is left to do of a benchmark, as pieces of work in their order."""
