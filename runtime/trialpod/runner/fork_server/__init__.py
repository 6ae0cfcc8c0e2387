"""The fork server: starts the trial processes of one machine."""
