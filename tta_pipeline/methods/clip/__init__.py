"""Methods for CLIP's zero-shot classifier."""
