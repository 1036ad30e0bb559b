"""Measures a storage (`run`, by `direct` or `fio`) or a `codec`, for the planner (`profile`)."""

__all__ = ["checks", "codec", "direct", "fio", "profile", "report", "run", "target"]
