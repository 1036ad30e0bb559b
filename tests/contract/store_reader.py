"""Reads the current cache in a loop and checks every byte against its manifest, with no code of the store but a pin.

usage: python -m tests.contract.store_reader ROOT NAME plain|pinned
Ends at end of input on stdin; prints one JSON object with the number of reads and what was not whole.
"""

import hashlib
import json
import os
import select
import sys

ROOT, NAME, HOW = sys.argv[1:4]


def check(directory: str) -> tuple[str, list[str]]:
    bad = []
    with open(f"{directory}.json", "rb") as file:
        manifest = json.load(file)
    listed = {entry["path"]: entry for entry in manifest["files"]}
    there = set()
    for here, _, names in os.walk(directory):
        for name in names:
            there.add(os.path.relpath(f"{here}/{name}", directory))
    if there != set(listed):
        bad.append(f"files {sorted(there ^ set(listed))}")
    for path, entry in listed.items():
        with open(f"{directory}/{path}", "rb") as file:
            data = file.read()
        if len(data) != entry["size_bytes"] or hashlib.sha256(data).hexdigest() != entry["digest"]:
            bad.append(f"contents of {path}")
    return manifest["build_id"], bad


reads, builds, bad = 0, set(), []
if HOW == "pinned":
    from prefect_cachewatch import CacheStore

    store = CacheStore(ROOT)
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        if HOW == "plain":
            build, found = check(os.path.realpath(f"{ROOT}/{NAME}/current", strict=True))
        else:
            with store.open_current(NAME) as pinned:
                build, found = check(pinned.path)
    except Exception as error:
        build, found = "?", [repr(error)]
    reads += 1
    builds.add(build)
    bad += found
print(json.dumps({"reads": reads, "builds": len(builds), "bad": bad[:20]}))
