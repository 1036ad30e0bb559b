"""The planner's arithmetic: a closed network (`network`) of `inputs`, solved (`convolution`, `queueing`), limited and explained.

`planning` joins it; `simulation` looks at tails, and `agreement` compares the two.
"""
