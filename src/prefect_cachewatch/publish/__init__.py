"""Only whole caches are used: the store, staging, manifests, checks, activation, roll-back, clean-up, health."""

__all__: list[str] = []
