"""Who owns the tree: the guard process (`guard`), its client (`client`), what a watch needs of either (`supervisor`), what the clients share and how helper processes are started (`helper_client`), readings from /proc (`proc`).

`adopted` is the supervisor of a process that somebody else started: `adoptee` pins it; `keeper` holds the output and the locks of a server that was handed over.
`stop_tree` is the one way to stop a tree, `tending` keeps helper processes going, `reading` reads of other processes what may never return.
`run_files` and `run_updates` keep the state files of running guards, `janitor` clears up after runs whose guards have died.
`guarded` runs a short command, `output` reads what a generator prints; `open_files` and
`filelocks` say what is open and who holds a lock.
"""

__all__: list[str] = []
