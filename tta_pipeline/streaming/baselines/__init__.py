"""Other people's loaders behind the interface of `tta_pipeline.streaming.reader.Stream`, to compare with."""
