"""What the contents of a file prove: whole files of each format, each cut at every byte and in every way, and in a build."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.written import write_gguf, write_safetensors, write_tensorbin, write_torch

from prefect_cachewatch.common.aside import Aside
from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.measure.growth_mark import GrowthMark
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.proof import prove, prove_files
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe
from prefect_cachewatch.run.delivery import PublishSession

REAL = Path(__file__).parents[2] / "data" / "formats"
NOISE = random.Random(7).randbytes(20_000) + b"\1"


def zipped(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


BY_SIZES = {
    "a.safetensors": write_safetensors({"t": ("U8", [11], b"12345678901"), "u": ("U8", [len(NOISE)], NOISE)}),
    "a.tensorbin": write_tensorbin([len(NOISE)], 5, [(0, len(NOISE))], NOISE),
    "a.gguf": write_gguf([("t", (len(NOISE),), 24, NOISE), ("u", (64,), 24, NOISE[-64:])]),
    "a.npy": npy(np.frombuffer(NOISE, dtype="u1")),
    "openvino-2026.4.1.blob": (REAL / "openvino-2026.4.1.blob").read_bytes(),
}
BY_CHECKSUMS = {
    "a.pt": write_torch([NOISE, b"", bytes(9000)]),
    "torch-2.13.0.pt": (REAL / "torch-2.13.0.pt").read_bytes(),
    "a.npz": zipped(a=np.arange(9), b=np.zeros(90_000)),
}
WHOLE = BY_SIZES | BY_CHECKSUMS


def see(data, name):
    proof = prove(io.BytesIO(data), name)
    return proof.verdict, proof.by


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_file_is_proved_by_its_checksums_or_by_sizes_without_a_gap(name):
    assert see(WHOLE[name], name) == ("whole", "sizes" if name in BY_SIZES else "checksums")


@pytest.mark.parametrize("name", WHOLE)
def test_no_file_that_was_cut_is_whole_though_its_size_was_reserved_before(name):
    data = WHOLE[name]
    places = {*range(0, len(data), 311), *range(len(data) - 70, len(data))}
    end = len(data.rstrip(b"\0"))  # zeros at the end of a file are as they were reserved
    for at in sorted(place for place in places if place < end):
        assert see(data[:at], name)[0] != "whole", at
        assert see(data[:at] + bytes(len(data) - at), name)[0] != "whole", at


@pytest.mark.parametrize("name", WHOLE)
def test_no_file_that_lacks_a_piece_in_the_middle_is_whole(name):
    data = WHOLE[name]
    for at in range(0, len(data) - 8192, 1777):
        assert see(data[:at] + bytes(8192) + data[at + 8192 :], name)[0] != "whole", at


@pytest.mark.parametrize("name", BY_CHECKSUMS)
def test_what_checksums_cover_is_whole_in_every_bit_or_not_proved(name):
    data = WHOLE[name]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    for member in members:
        name_bytes, extra_bytes = struct.unpack_from("<HH", data, member.header_offset + 26)
        for at in range(member.compress_size and min(member.compress_size, 40)):
            place = member.header_offset + 30 + name_bytes + extra_bytes + at
            changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            assert see(changed, name)[0] != "whole", (member.filename, at)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("zeros.safetensors", write_safetensors({"t": ("U8", [8192], bytes(8191) + b"\1")})),
        ("ends.safetensors", write_safetensors({"t": ("I32", [1], b"\1\0\0\0")})),
        ("unknown.gguf", write_gguf([("t", (3,), 99, b"x" * 64)])),
        ("lib.so", b"\x7fELF\x02\x01"),
        ("notes.txt", b"hello"),
        ("more.safetensors", b""),
        ("behind.npy", npy(np.ones(3)) + b"x"),
        ("lacks.pt", write_torch([b"x" * 8], [("ByteStorage", "7", 8)])),
    ],
)
def test_what_proves_nothing_is_unknown_and_what_contradicts_itself_is_cut(name, data):
    cut = name in ("lib.so", "more.safetensors", "lacks.pt")
    assert see(data, name) == ("cut" if cut else "unknown", None)


def test_a_shared_object_is_never_proved_since_linkers_write_in_any_order():
    library = min(Path(np.__file__).parent.rglob("*.so"), key=lambda path: path.stat().st_size).read_bytes()
    assert see(library, "x.so") == ("unknown", None)
    assert see(library[:-1], "x.so") == ("cut", None)


def test_what_takes_longer_than_the_time_that_is_left_is_unknown():
    for name, data in WHOLE.items():
        assert prove(io.BytesIO(data), name, until_s=time.monotonic() - 1).verdict == "unknown"


def begin(root, **fields):
    policy = PublishPolicy(store=root, **fields)
    return CacheStore(root).begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)), policy


def resumed(build, policy, files, *, reported=(), known=True):
    """Write files that the time rule would remove, all of them, and resume."""
    build.note_growth()
    if not known:
        Path(build.growth_mark).unlink()
    for name, data in files.items():
        Path(build.path, name).parent.mkdir(exist_ok=True, parents=True)
        Path(build.path, name).write_bytes(data)
    gone = build.prepare_resume(
        policy, window_s=300, reported=reported, prove=lambda paths: prove_files(build.path, paths)
    )
    return {suspect.path: suspect.reason for suspect in gone}


def test_a_retry_keeps_what_is_provably_whole_and_removes_what_is_not(tmp_path):
    build, policy = begin(tmp_path)
    with build:
        files = WHOLE | {"cut.npy": WHOLE["a.npy"][:-1], "plain.bin": b"x", "half.bin.tmp": WHOLE["a.npy"], "none": b""}
        gone = resumed(build, policy, files)
        assert gone == {
            "cut.npy": "broken", "plain.bin": "changed_in_window", "half.bin.tmp": "temporary", "none": "empty",
        }  # fmt: skip
        assert sorted(os.listdir(build.path)) == sorted(WHOLE)
        [note] = build.notes
        assert note.startswith("kept what was written last and is provably whole: a.gguf (by its sizes), ")
        assert note.endswith(" and 5 more")


def test_of_what_was_open_or_growing_at_the_end_only_checksums_prove_anything(tmp_path):
    build, policy = begin(tmp_path)
    with build:
        assert resumed(build, policy, WHOLE, reported=WHOLE) == dict.fromkeys(BY_SIZES, "reported")


def test_where_no_change_time_is_known_contents_prove_the_same(tmp_path):
    build, policy = begin(tmp_path)
    with build:
        assert resumed(build, policy, WHOLE | {"x.bin": b"x"}, known=False) == {"x.bin": "unprovable"}
        assert any("8 of the 9 files" in note for note in build.notes)


def marker(*listed):
    return json.dumps({"format_version": 3, "cache_files": listed}).encode()


def test_a_marker_of_tt_metal_proves_what_it_lists_and_what_has_not_changed_since(tmp_path):
    for case in ("since", "later", "missing", "reported", "copied"):
        (tmp_path / case).mkdir()
        build, policy = begin(tmp_path / case)
        with build:
            build.note_growth()
            below = Path(build.path, "n300")
            below.mkdir()
            for name in ("a.bin", "b.bin", "other.bin"):
                (below / name).write_bytes(b"x")
            time.sleep(0.05)  # the kernel's clock has ticks
            (below / ".weights_complete").write_bytes(
                marker("a.bin", "b.bin", *(["c.bin"] if case == "missing" else []))
            )
            time.sleep(0.05)
            if case == "later":
                (below / "b.bin").write_bytes(b"y")
            gone = resumed(
                build, policy, {}, known=case != "copied", reported=["n300/a.bin"] if case == "reported" else []
            )
        goes = {
            "since": {"other.bin"},
            "later": {"other.bin", "b.bin"},
            "missing": {"other.bin", "a.bin", "b.bin"},
            "reported": {"other.bin", "a.bin"},
            "copied": {"other.bin", "a.bin", "b.bin"},
        }[case]
        # The marker goes with any file that goes.
        assert set(gone) == {f"n300/{name}" for name in goes | {".weights_complete"}}, case
    assert gone["n300/.weights_complete"] == "unprovable"


def test_a_marker_stays_with_all_that_it_vouches_for_unless_the_clock_was_set_back(tmp_path, monkeypatch):
    build, policy = begin(tmp_path)
    with build:
        build.note_growth()
        Path(build.path, "a.bin").write_bytes(b"x")
        time.sleep(0.05)
        Path(build.path, ".weights_complete.none").write_bytes(marker("a.bin"))
        assert resumed(build, policy, {}) == {}
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        assert set(resumed(build, policy, {})) == {"a.bin", ".weights_complete.none"}


def test_a_file_that_is_replaced_after_it_was_read_is_not_the_one_that_was_proved(tmp_path):
    build, policy = begin(tmp_path)
    with build:
        build.note_growth()
        path = Path(build.path, "a.npy")
        path.write_bytes(WHOLE["a.npy"])
        proofs = prove_files(build.path, ["a.npy", "gone.npy", "../a.npy"])
        assert list(proofs) == ["a.npy"]
        path.unlink()
        path.write_bytes(WHOLE["a.npy"][:-9] + b"123456789")
        gone = build.prepare_resume(policy, window_s=300, prove=lambda _paths: proofs)
        assert [suspect.path for suspect in gone] == ["a.npy"]


def test_what_cannot_be_read_proves_nothing_and_stops_nothing(tmp_path):
    Path(tmp_path, "a.npy").write_bytes(WHOLE["a.npy"])
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    (tmp_path / os.fsdecode(b"-\xff\n.npy")).write_bytes(WHOLE["a.npy"])
    found = prove_files(str(tmp_path), os.listdir(tmp_path))
    assert {path: proof.verdict for path, proof in found.items()} == {
        "a.npy": "whole",
        os.fsdecode(b"-\xff\n.npy"): "whole",
    }


GENERATOR = """
import os, signal, struct, sys
place, noise = sys.argv[1], os.urandom(300_000).replace(b"\\0", b"\\1")
def write(name, end, reserved):
    header = b'{"t":{"dtype":"U8","shape":[300000],"data_offsets":[0,300000]}}'
    data = struct.pack("<Q", len(header)) + header + noise
    with open(f"{place}/{name}", "wb") as file:
        if reserved:
            file.truncate(len(data))
        file.write(data[:end])
write("reserved.safetensors", None, True)
write("appended.safetensors", None, False)
write("torn.safetensors", 200_000, True)
write("cut.safetensors", 200_000, False)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_generators_last_whole_files_stay_and_its_torn_ones_go(tmp_path, caplog):
    job = CacheJob(name="c", command=["gen", "{cache_dir}"])
    files = Aside.spawn()
    with contextlib.closing(files), PublishSession(job, PublishPolicy(store=tmp_path), files=files) as delivery:
        delivery.begin(clean=False)
        with contextlib.closing(GrowthMark(delivery.target.growth_mark, delivery.target.path)):
            ended = subprocess.run([sys.executable, "-c", GENERATOR, delivery.target.path], check=False)
        assert ended.returncode == -9
        delivery.prepare_retry(300)
        assert sorted(os.listdir(delivery.target.path)) == ["appended.safetensors", "reserved.safetensors"]
    assert "provably whole: appended.safetensors (by its sizes), reserved.safetensors (by its sizes)" in caplog.text
