"""The pod in which a script's own deciding code runs."""
