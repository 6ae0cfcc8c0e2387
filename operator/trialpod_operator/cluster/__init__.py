"""The Kubernetes shell: watches TuneExperiments, runs their trials as pods, and keeps their status."""
