"""What was found when a generation ended: the listing, the report."""

__all__ = ["listing"]
