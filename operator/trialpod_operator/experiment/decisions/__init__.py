"""An experiment whose decisions come from a decider: a process of the user's, with the user's own deciding code."""
