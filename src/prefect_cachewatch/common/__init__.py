"""What every room needs and the standard library lacks.

Files and directories of ours (`files`, `directories`), who touches them while a generator runs (`aside`, `pinned`), what
removes files (`removal`), and `tuples`.
"""

__all__ = ["aside", "directories", "files", "pinned", "removal", "tuples"]
