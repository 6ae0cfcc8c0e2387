"""The life of an attempt process: assignment, Trainable, reports, checkpoints, signals."""
