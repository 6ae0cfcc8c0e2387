"""Runs a command as a trial: its process, its output, its checkpoints."""
