"""The zero-shot classifier of a CLIP."""
