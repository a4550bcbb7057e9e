"""Evaluation of a method over batches: predictions, accuracy, calibration and timing."""
