"""Metrics out of what a program writes anyway: lines of text, JSON, CSV, event files, Prometheus' format. Pure."""
