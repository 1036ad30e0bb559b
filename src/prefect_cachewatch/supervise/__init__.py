"""Who owns the tree: the guard process (`guard`), its client (`client`), what a watch needs of either (`supervisor`), what the clients share (`helper_client`), readings from /proc (`proc`).

`adopted` is the supervisor of a process that somebody else started: `adoptee` pins it, `family` keeps who belongs to it, `observed` and
`observer` are what it shares with an adopted container; `keeper` holds the output and the locks of a server that was handed over.
`stop_tree` is the one way to stop a tree, `tending` keeps helper processes going, `reading` reads of other processes what may never return.
`run_files` and `run_updates` keep the state files of running guards, `janitor` clears up after runs whose guards have died.
"""

__all__ = [
    "client",
    "guard",
    "helper_client",
    "janitor",
    "proc",
    "reading",
    "run_files",
    "run_updates",
    "stop_tree",
    "supervisor",
    "tending",
]
