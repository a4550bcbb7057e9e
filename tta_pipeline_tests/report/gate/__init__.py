"""Tests of tta_pipeline.report.gate."""
