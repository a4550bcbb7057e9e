"""Third-party loaders behind the interface of `tta_pipeline.streaming.reader.Stream`, for comparison."""
