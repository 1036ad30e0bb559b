"""One attempt, one verdict: its directories (`site`), its measurements (`monitor`), the rule (`stall`), all of it (`attempt`).

`attached` watches what somebody else started; `outcomes` has the ways to end and their sentences,
`emptiness` an end without a cache, `marking` the job's marker files, `sections` parts of the report. Servers, which are done when they are ready, are in `servers`.
"""

__all__: list[str] = []
