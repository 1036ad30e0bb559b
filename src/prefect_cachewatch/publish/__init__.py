"""Only whole caches are used: the store, staging, manifests, checks, activation, roll-back, clean-up."""

__all__ = [
    "activation",
    "builds",
    "checks",
    "collection",
    "digests",
    "durable",
    "in_place",
    "layout",
    "locks",
    "manifest",
    "names",
    "policy",
    "retention",
    "space",
    "staging",
    "store",
    "suspects",
    "target",
    "tree",
    "verification",
]
