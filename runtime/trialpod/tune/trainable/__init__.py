"""The class API: `Trainable` and what belongs to it."""
