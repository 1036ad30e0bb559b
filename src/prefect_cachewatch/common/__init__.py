"""What every room needs: text and units, files and directories of ours, what people write and how it is refused.

Files and directories of ours (`files`, `directories`), who touches them while a generator runs (`aside`, `pinned`), what
removes files (`removal`), and `tuples`.
"""

__all__ = [
    "ahead",
    "aside",
    "bounded",
    "directories",
    "files",
    "inputs",
    "pinned",
    "removal",
    "statedir",
    "text",
    "tuples",
    "units",
    "yamlfile",
]
