"""Supervision of the generator's process tree.

`guard` is the process that owns the tree, `client` talks to it, and `supervisor` is the interface that a watch needs.
`helper_client` has what all clients share and starts helper processes; `proc` reads /proc.

`adopted` supervises a process that another program started: `pinned_process` pins it. `stop_tree` is the one way to stop a tree, `tending` keeps helper processes going,
`reading` reads data of other processes that may never arrive.

`run_files` and `run_updates` keep the state files of running guards, `janitor` cleans up after runs whose guards died.
`guarded` runs a short command, `output` reads what a generator prints, and `follow` does it where that goes to a file. `open_files` lists open files and `filelocks`
the holders of a lock.
"""
