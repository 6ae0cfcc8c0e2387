"""Who sends a report, the pod that a token is bound to, and who answers it: the operator's certificates."""
