"""Checkpoints as users hold them: a directory, a dict, a URI, or one in the experiment's storage."""
