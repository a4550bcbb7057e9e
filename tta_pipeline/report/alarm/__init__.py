"""An alarm for streams without labels: a sequential test on confidences, from kept predictions."""
