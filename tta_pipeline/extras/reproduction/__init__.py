"""Publication and repetition of results: a folder with everything that determines them, and a way to repeat them."""
