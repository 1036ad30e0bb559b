"""Jobs that are done when a server is ready: the readiness checks (`checks`), the warm-up rule (`warmup`).

`serving` waits for one attempt's server, `handover` releases a ready server, `records` identifies it from then on, and
`stopping` ends it.
"""
