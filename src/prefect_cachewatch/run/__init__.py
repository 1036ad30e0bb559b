"""Shared by command and flow: where a job runs (`placement`), `retry`, the publication of a cache (`delivery`).

`history` keeps figures of earlier runs of a cache, `followup` decides what follows a stall, `attached` watches a
process that cachewatch did not start, `runner` puts an attempt together, `exposure` refuses secrets in parameters,
`outputs` refuses files that conflict.
"""
