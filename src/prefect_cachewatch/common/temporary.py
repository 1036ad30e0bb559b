"""Name patterns of files with a meaning: still being written, which is suspect and never published; vouching for others. Pure."""

from __future__ import annotations

TEMPORARY = (
    "*.tmp", "*.tmp.*", "*.temp", "*.partial", "*.incomplete", "*.part", "*.filepart", "*.unfinished", "*.inprogress",
    "*.download", "*.downloading", "*.crdownload", "*.opdownload", "*.aria2", "*_.gstmp",
    "._____temp/*", "*/._____temp/*",
)  # fmt: skip
# Written when the cache around them was whole: of tt-metal (a suffix says which build variant) and of tt-inference-server.
MARKERS = (".weights_complete", ".weights_complete.*", "TT_METAL_CACHE_COMPLETED")
