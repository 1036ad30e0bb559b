"""The Prefect flows that people deploy: generation, deployment, follow-up of a stall, and the watch over what runs already."""

__all__ = ["deployment", "follow_up", "generation", "watching"]
