"""Batches through a method: predictions, accuracy, calibration and timing."""
