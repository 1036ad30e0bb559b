"""Lets only whole caches be used: store, staging, manifests, checks, activation, roll-back, clean-up, health."""
