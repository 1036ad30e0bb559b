"""Runs generators in containers: an engine's API, the run's container, and the warden that outlives the flow."""
