"""Several operators at work: which of them serves which experiments."""
