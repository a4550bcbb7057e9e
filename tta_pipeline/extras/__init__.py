"""Optional parts: removing any of them does not change how results are computed."""
