"""Adaptation without gradients."""
