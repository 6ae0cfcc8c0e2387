"""The pods of one experiment: how they are built, created, bound to attempts, diagnosed and removed."""
