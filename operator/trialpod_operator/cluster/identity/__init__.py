"""Who sends a report: the pod that a token is bound to."""
