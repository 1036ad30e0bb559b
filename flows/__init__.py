"""The Prefect flows that people deploy."""

__all__: list[str] = []
