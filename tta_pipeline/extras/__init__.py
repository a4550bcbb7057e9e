"""Optional parts: each could be removed without any effect on how results are computed."""
