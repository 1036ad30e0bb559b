"""What every room needs: text and units, files and directories of ours, what people write and how it is refused.

Files and directories of ours (`files`, `directories`), who touches them while a generator runs (`aside`, `pinned`), what
removes files (`removal`), the mount table (`mounts`), and `tuples`.
"""

__all__: list[str] = []
