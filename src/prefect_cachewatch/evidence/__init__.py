"""Finds the cause of a stall or a crash, and writes the post-mortem.

`evidence` collects (from `proctree`, `procdetails`, `filesystem`, `stacks`) into `model` and `readings`; `diagnosis`
judges with `rules_storage`, `rules_process` and `rules_crash`, through `view` and `waits`; `last_words` reads what a
generator printed last, by the table in `crash_table`; `bundle` writes the result, with `listing`, `chart` and `html`;
`bundlestore` lists and removes bundles. `examination` does all of it for one attempt; `report` has the result.
"""
