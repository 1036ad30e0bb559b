"""Finds out what a process tree does and waits for, and names the cause of a stall or a crash.

`collector` reads (by `proctree`, `procdetails`, `filesystem`, `stacks`, `waited_locks`) into `model` and `readings`; `rules`
judges with `rules_storage`, `rules_process` and `rules_crash`, through `view` and `waits`; `last_words` reads what a
generator printed last, by the table in `crash_table`. `causes` has what a person does next, `deadlock` what is final.
`run.examination` does all of it for one attempt; `report` tells it.
"""
