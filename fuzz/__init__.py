"""Fuzzing of the ONNX frontend and of what follows it: ``make fuzz`` (see ``fuzz.oracle`` for what is a fault)."""
