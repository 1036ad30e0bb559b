"""Who owns the tree: the guard process (`guard`), its client (`client`), readings from /proc (`proc`)."""

__all__ = ["client", "guard", "proc"]
