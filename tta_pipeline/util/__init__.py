"""What any program has: files and locks, processes, progress, identifiers, YAML with lines, locations."""
