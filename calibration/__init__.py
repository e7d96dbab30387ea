"""Calibration: statistics of values, ranges, the reference evaluator of plans, and the noise model."""
