"""The gate: whether results keep to limits and are no worse than a baseline, as a CI shows it."""
