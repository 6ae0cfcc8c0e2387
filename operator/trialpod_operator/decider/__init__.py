"""The decider: a process of the user's that runs the engine with the user's own deciding code."""
