"""The Prefect flows that people deploy: `generation.generate_cache` and `deployment.deploy_cache`."""

__all__ = ["deployment", "generation"]
