"""The `cachewatch` command."""

__all__ = ["main"]
