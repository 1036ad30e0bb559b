"""Many generations as one: the jobs file, the policy of failures, the table, what a running job says of itself."""

__all__ = ["finished", "hostcheck", "jobs", "jobsfile", "outcome", "rows", "status", "table"]
