"""A real two-node Kubernetes cluster on one machine, for tests: built from sources, run in one network namespace.

Invariants: everything that a cluster makes carries the checkout's own tag (network namespace, cgroups, /run folder),
so two checkouts do not meet; every process is known by its process id and start time, and is ended by these alone;
every wait has a bound, and a failure shows the last lines of the log of what failed.
"""
