"""Several active operators: which of them serves which experiments."""
