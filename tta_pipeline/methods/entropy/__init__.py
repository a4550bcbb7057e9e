"""Gradient steps on a loss of the predictions."""
