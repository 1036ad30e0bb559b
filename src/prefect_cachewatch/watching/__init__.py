"""One attempt and its verdict: directories (`site`), measurements (`monitor`), the rule (`stall`), joined in `attempt`.

`attached` watches a process that cachewatch did not start. `outcomes` has the ways to end and their sentences,
`emptiness` finds an end without a cache, `marking` writes the job's marker files, `sections` has parts of the report.
Servers, whose job is done when they are ready, are in `servers`.
"""
