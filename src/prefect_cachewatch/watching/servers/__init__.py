"""Jobs that are done when a server is ready: the looks (`checks`), the warm-up rule (`warmup`).

`serving` waits and joins them for one attempt; `handover` lets go of a ready server, `records` knows it from then on, and
`stopping` ends it. `match_process` searches its output.
"""

__all__: list[str] = []
