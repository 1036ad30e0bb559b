"""Only whole caches are used: the store, staging, manifests, checks, activation, roll-back, clean-up, health."""

__all__ = [
    "activation",
    "builds",
    "checks",
    "collection",
    "durable",
    "health",
    "in_place",
    "layout",
    "locks",
    "manifest",
    "names",
    "policy",
    "staging",
    "store",
    "target",
    "tree",
    "verification",
]
