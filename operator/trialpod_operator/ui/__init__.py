"""The page of an experiment, and the server that serves it."""
