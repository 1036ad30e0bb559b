"""Load every .tensorbin below a directory with ttnn and print how many there are: a cache that a server can read.

usage: ttnn_check.py CACHE_DIR
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TT_LOGGER_LEVEL", "error")
os.environ.setdefault("LOGURU_LEVEL", "WARNING")


def main() -> None:
    import ttnn

    paths = sorted(Path(sys.argv[1]).rglob("*.tensorbin"))
    elements = sum(ttnn.load_tensor(str(path)).volume() for path in paths)
    print(len(paths), elements)


if __name__ == "__main__":
    main()
