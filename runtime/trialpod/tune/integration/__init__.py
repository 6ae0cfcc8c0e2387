"""Callbacks for other libraries that report a trial's metrics and checkpoints; each needs its library."""
