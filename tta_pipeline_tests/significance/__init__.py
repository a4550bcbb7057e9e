"""Tests of tta_pipeline.significance."""
