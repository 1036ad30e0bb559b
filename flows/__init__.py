"""The Prefect flows that people deploy: `generation.generate_cache`."""

__all__ = ["generation"]
