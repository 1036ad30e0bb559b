"""Many generations in one run: the jobs file, the policy on failures, the table, and the status of a running job."""
