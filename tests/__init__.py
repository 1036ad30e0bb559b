"""A real package on purpose: ciw, which some tests compare with, installs a top-level `tests` of its own."""
