"""The benchmark files and what they say."""
