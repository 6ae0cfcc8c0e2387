"""How user code travels from the script to its trials: the pickle, large objects beside it, and what hinders it."""
