"""Jobs that are done when a server is ready: the looks (`checks`), the wait (`readywatch`), the warm-up rule (`warmup`).

`serving` joins them for one attempt; `handover` lets go of a ready server, `records` knows it from then on, and
`stopping` ends it. `matching` searches its output, by `match_process`.
"""

__all__ = ["checks", "handover", "match_process", "matching", "readywatch", "records", "serving", "stopping", "warmup"]
