"""The tasks: search spaces whose learning curves and step durations are known, so that a training costs no time."""
