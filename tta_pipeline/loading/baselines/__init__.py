"""Third-party loaders behind the interface of `tta_pipeline.loading.reader.Stream`, for comparison."""
