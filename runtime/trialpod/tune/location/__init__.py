"""Where an experiment is: its name, its directory on this machine, and its storage elsewhere."""
