"""The `cachewatch` command."""
