"""Finds out what a process tree does and waits for, and names the cause of a stall or a crash.

`collector` reads (by `proctree`, `procdetails`, `filesystem`, `stacks`, `waited_locks`) into the values of `model`;
`rules` judges with `rules_storage` and `rules_process`, through `view`; `last_words` reads what a generator printed
last, by the table in `crash_table`. `causes` has what a person does next. `run.examination` does all of it for one attempt;
`report` tells it.
"""
