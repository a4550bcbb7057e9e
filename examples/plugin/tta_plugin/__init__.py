"""A method and a kind of model for `tta_pipeline` in a separate package."""
