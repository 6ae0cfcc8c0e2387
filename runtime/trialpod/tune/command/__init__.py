"""A command as a Trainable: its templates, its parameters and its metrics."""
