"""What command and flow have in common: where a job runs (`placement`), `retry`, the way to a published cache (`delivery`).

`history` tells of earlier runs of a cache, `followup` what comes after a stall, `attached` runs a watch over a process
of somebody else's, `runner` puts an attempt together, `exposure` refuses secrets in parameters, `outputs` files that get in each other's way. Recorded runs are in `trace`.
"""

__all__ = [
    "attached",
    "delivery",
    "exposure",
    "followup",
    "history",
    "outputs",
    "placement",
    "retry",
    "runner",
    "trace",
]
