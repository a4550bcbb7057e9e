"""Batch norm statistics: the source model, and methods that change only statistics."""
