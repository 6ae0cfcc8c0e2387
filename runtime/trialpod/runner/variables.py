"""The environment variables with which a trial's process tells the user's code where it is."""

ORIGINAL_DIR = "TRIALPOD_ORIG_WORKING_DIR"
"""Where the process was when it was given its first trial."""
RAY_ORIGINAL_DIR = "TUNE_ORIG_WORKING_DIR"
"""Ray Tune's name for it."""
STAY = "RAY_CHDIR_TO_TRIAL_DIR"
"""With "0", trials stay in that directory."""
