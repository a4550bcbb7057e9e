"""Gradient steps that draw a batch's features towards the source's."""
