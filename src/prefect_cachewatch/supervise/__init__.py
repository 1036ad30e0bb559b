"""Who owns the tree: the guard process (`guard`), its client (`client`), readings from /proc (`proc`).

`run_files` and `run_updates` keep the state files of running guards, `janitor` clears up after runs whose guards have died.
"""

__all__ = ["client", "guard", "janitor", "proc", "run_files", "run_updates"]
