"""The planner's arithmetic: a closed network (`network`) of `inputs`, solved (`convolution`, `queueing`), limited and explained.

`planning` joins it; `simulation` looks at tails, and `agreement` compares the two.
"""

__all__ = [
    "agreement",
    "convolution",
    "demands",
    "estimates",
    "inputs",
    "limits",
    "network",
    "planning",
    "prediction",
    "profile",
    "queueing",
    "recommendation",
    "results",
    "simulation",
    "slots",
    "usl",
    "wording",
]
