"""What schedulers, search algorithms and stoppers have in common: their names, their state, their metric."""
