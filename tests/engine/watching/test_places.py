"""Which directories are chosen from the files that a generator writes: literals, and what is never chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.watching.places import Surroundings, choose_directories

AROUND = Surroundings(
    home="/home/u", cwd="/home/u/proj", command=["python3", "gen.py", "--out=/mnt/nfs/team/llama", "rel/dir"],
    env={"HF_HOME": "/mnt/hf", "PWD": "/home/u/proj", "HOME": "/home/u", "PATH": "/usr/bin:/opt/bin", "TMPDIR": "/scratch/tmp"},
    mounts={"/", "/mnt/nfs", "/cache"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        # named by the command or its environment
        ({"/mnt/nfs/team/llama/n150/layer0/w": 10}, {"/mnt/nfs/team/llama": 10}),
        ({"/home/u/proj/rel/dir/sub/w": 10}, {"/home/u/proj/rel/dir": 10}),
        ({"/mnt/hf/hub/models--a/blobs/w.incomplete": 10}, {"/mnt/hf": 10}),
        # the program's own among the user's caches
        ({"/home/u/.cache/vllm/torch_compile_cache/ab/rank_0_0/w": 10}, {"/home/u/.cache/vllm": 10}),
        ({"/home/u/.cache/a/w": 30, "/home/u/.cache/b/w": 20}, {"/home/u/.cache/a": 30, "/home/u/.cache/b": 20}),
        ({"/home/u/.cache/w": 30}, {}),
        # one of many: its parent, no further than a shared directory or the working directory
        ({"/mnt/nfs/x/layer7/w": 10}, {"/mnt/nfs/x": 10}),
        ({"/mnt/nfs/layer7/w": 10}, {"/mnt/nfs/layer7": 10}),
        ({"/home/u/proj/out1/w": 10}, {"/home/u/proj/out1": 10}),
        ({"/models/a/blobs/ab12/w": 10}, {"/models/a": 10}),
        # siblings make their parent
        ({"/tmp/inductor_u/ab/w": 5, "/tmp/inductor_u/cd/w": 6}, {"/tmp/inductor_u": 11}),
        ({"/tmp/a/w": 5, "/tmp/b/w": 6}, {"/tmp/b": 6, "/tmp/a": 5}),
        ({"/models/a/w": 5, "/models/a/b/w": 6}, {"/models/a": 11}),
        # shared directories, logs, the system's
        ({"/w": 1, "/tmp/w": 1, "/home/u/w": 1, "/home/w": 1, "/cache/w": 1, "/scratch/tmp/w": 1, "/root/w": 1}, {}),
        ({"/proc/7/w": 1, "/sys/w": 1, "/dev/w": 1, "/var/log/app/w": 1, "/run/u/w": 1, "/etc/app/w": 1}, {}),
        ({"/models/a/run.log": 9, "/models/a/run.log.1": 9, "/models/a/logs/w": 9, "/models/a/x.lock": 9,
          "/models/a/w (deleted)": 9, "/models/a/.git/w": 9}, {}),
        ({"/models/a/run.log": 900, "/models/a/w": 1}, {"/models/a": 1}),
        # little beside much
        ({"/models/a/w": 1000, "/state/b/w": 10}, {"/models/a": 1000}),
        ({"/models/a/w": 0}, {"/models/a": 1}),
        ({}, {}),
    ],
)  # fmt: skip
def test_the_directory_is_the_one_a_person_would_name(written, chosen):
    assert choose_directories(written, AROUND) == chosen


paths = st.lists(
    st.sampled_from(["tmp", "home", "u", "mnt", "nfs", "proc", "dev", "sys", ".cache", "layer1", "blobs", "x", "logs", "a.log", "proj"]),
    min_size=1, max_size=6,
).map(lambda parts: "/" + "/".join(parts))  # fmt: skip


@given(st.dictionaries(paths, st.integers(0, 10**12), max_size=12))
def test_a_choice_is_never_shared_nor_the_systems_and_no_directory_is_inside_another(written):
    chosen = choose_directories(written, AROUND)
    assert len(chosen) <= 4
    for path in chosen:
        assert path not in ("/", "/tmp", "/home", "/home/u", "/home/u/.cache", "/mnt", "/mnt/nfs")
        assert not path.startswith(("/proc", "/dev", "/sys"))
        assert any(each.startswith(f"{path}/") for each in written)
        assert not any(other.startswith(f"{path}/") for other in chosen)
