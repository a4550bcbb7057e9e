"""General tools: files and locks, worker processes, progress, identifiers, YAML with line numbers, locations."""
