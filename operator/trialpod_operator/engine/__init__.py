"""All decisions of an experiment, as a pure state machine: no I/O, no clock, no global random source."""
