"""Measures a storage (`run`, by `direct` or `fio`) or a `codec`, for the planner (`profile`)."""
