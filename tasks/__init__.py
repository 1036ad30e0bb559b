"""The engine as Prefect tasks."""

__all__: list[str] = []
