"""A method for `tta_pipeline` in a package of its own."""
