"""The Dagster layer: one short file for each asset, in the order data flows."""
