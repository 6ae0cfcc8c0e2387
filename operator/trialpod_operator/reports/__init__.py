"""The service that attempts talk to."""
