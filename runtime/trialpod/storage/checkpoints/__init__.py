"""Checkpoints: committed as a whole or not there at all, verified when read."""
