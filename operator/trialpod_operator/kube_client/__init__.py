"""The user's side of a cluster: the backend `kubernetes`, the client of scripts and commands, and their checks."""
