"""What the operator measures of itself, for Prometheus: instruments, the account of each experiment, the page."""
