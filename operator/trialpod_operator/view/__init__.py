"""The read model of an experiment: what every page, export and command shows of it."""
