"""trialpod: hyperparameter tuning with trials as pods, or as processes on one machine.

Users write ``from trialpod import tune``. Importing this package imports nothing else, so that a trial process
pays only for what it uses.
"""

__version__ = "0.1.0"
