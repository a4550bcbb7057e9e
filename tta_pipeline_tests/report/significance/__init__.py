"""Tests of tta_pipeline.report.significance."""
