"""The statuses, conditions and events of an experiment and its trials: what they say, and the one writer of them."""
