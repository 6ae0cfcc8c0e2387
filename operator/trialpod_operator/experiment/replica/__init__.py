"""The replica of an experiment's directory in its storage: journal, files, and their cleanup."""
