"""Codecs measured on samples: real libraries, real bytes."""

import os
import shutil
import subprocess
import sys
from threading import Event

import pytest
import yaml
from tests.support import unavailable

from prefect_cachewatch.capacity.model.profile import CodecProfile
from prefect_cachewatch.capacity.planfile import read_storage
from prefect_cachewatch.capacity.probe.codec import measure_codec
from prefect_cachewatch.errors import InputError

MIB = 2**20
CODECS = ["zstd", "lz4", "lzo"]


def needs_program_of(codec):
    if codec == "lzo" and not shutil.which("lzop"):
        unavailable("needs lzop (Debian's package lzop)")


@pytest.fixture
def sample(tmp_path):
    """One MiB of which half is noise and half the same: the ratio is near 2."""
    path = tmp_path / "weights.bin"
    path.write_bytes(os.urandom(MIB // 2) + bytes(MIB // 2))
    return path


@pytest.mark.parametrize("name", CODECS)
def test_a_sample_that_is_half_noise_shrinks_to_about_half(name, sample):
    needs_program_of(name)
    measured = measure_codec(name, sample)
    assert 1.9 < measured.profile.ratio < 2.1
    assert measured.profile.compress_cpu_s_per_gb > 0
    assert measured.profile.sample_bytes == MIB
    assert measured.repetitions == 3
    assert measured.pays_below_bytes_per_s == pytest.approx(1e9 / measured.profile.compress_cpu_s_per_gb)


@pytest.mark.parametrize("name", CODECS)
def test_noise_does_not_shrink_and_compressing_it_never_pays(name, tmp_path):
    needs_program_of(name)
    path = tmp_path / "noise"
    path.write_bytes(os.urandom(MIB))
    measured = measure_codec(name, path)
    assert 0.97 < measured.profile.ratio <= 1
    assert measured.pays_below_bytes_per_s == 0


def test_a_higher_level_costs_more_processor_time(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"".join(b"layer.%d.weight %d\n" % (i, i * i) for i in range(100_000)))
    fast, slow = (measure_codec("zstd", path, level=level).profile for level in (1, 15))
    assert slow.compress_cpu_s_per_gb > fast.compress_cpu_s_per_gb


def test_a_directory_is_its_files_and_links_are_not_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(os.urandom(100_000))
    (tmp_path / "two").write_bytes(os.urandom(50_000))
    (tmp_path / "link").symlink_to("/bin/sh")
    assert measure_codec("zstd", tmp_path).profile.sample_bytes == 150_000


def test_of_a_large_sample_chunks_are_taken_from_all_over_it(tmp_path):
    path = tmp_path / "large"
    with open(path, "wb") as file:
        for _ in range(4):
            file.write(os.urandom(8 * MIB))
            file.write(bytes(8 * MIB))
    measured = measure_codec("lz4", path, max_bytes=24 * MIB)
    assert measured.whole_sample_bytes == 64 * MIB
    assert measured.profile.sample_bytes == 24 * MIB
    assert 1.3 < measured.profile.ratio < 3.3


def test_a_measurement_that_is_stopped_keeps_the_part_it_has_done(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(80 * MIB))
    stop = Event()
    stop.set()
    measured = measure_codec("lz4", path, stop=stop)
    assert measured.profile.sample_bytes == 32 * MIB
    assert measured.repetitions == 1


@pytest.mark.parametrize(
    ("name", "level", "said"),
    [
        ("zstd", 23, "zstd has no level 23: choose one from -7 to 22"),
        ("lz4", -1, "lz4 has no level -1: choose one from 0 to 12"),
        ("lzo", 0, "lzo has no level 0: choose one from 1 to 9"),
    ],
)
def test_a_level_that_there_is_not_is_one_sentence(name, level, said, sample):
    with pytest.raises(InputError, match=said):
        measure_codec(name, sample, level=level)


@pytest.mark.parametrize(("name", "package"), [("zstd", "zstandard"), ("lz4", "lz4.frame")])
def test_a_library_that_is_missing_is_one_sentence(name, package, sample, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{name} needs the package .*: pip install 'prefect-cachewatch\[codec\]'"):
        measure_codec(name, sample)


def test_lzo_that_is_missing_is_one_sentence(sample, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lzo", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="lzo needs the program lzop or the package python-lzo: apt install lzop"):
        measure_codec("lzo", sample)


def test_a_codec_program_that_fails_is_told(sample, monkeypatch, tmp_path):
    fake = tmp_path / "lzop"
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setitem(sys.modules, "lzo", None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Exception, match="failed with exit code 3"):
        measure_codec("lzo", sample)


def test_a_codec_that_gives_back_other_bytes_is_found_out(sample, monkeypatch, tmp_path):
    fake = tmp_path / "lzop"
    fake.write_text("#!/bin/sh\necho wrong\n")
    fake.chmod(0o755)
    monkeypatch.setitem(sys.modules, "lzo", None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Exception, match="lzop gave back other bytes than it got"):
        measure_codec("lzo", sample)


def test_a_sample_that_is_missing_empty_or_tiny_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="nowhere does not exist: name a file"):
        measure_codec("zstd", tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no file in it"):
        measure_codec("zstd", tmp_path)
    (tmp_path / "tiny").write_bytes(b"x" * 1000)
    with pytest.raises(InputError, match="has 1000 bytes, too few"):
        measure_codec("zstd", tmp_path / "tiny")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is neither a file nor a directory"):
        measure_codec("zstd", tmp_path / "pipe")


def cachewatch(*words, cwd):
    argv = [sys.executable, "-m", "prefect_cachewatch.cli.main", "probe", *map(str, words)]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_prints_lines_for_a_workload(sample):
    run = cachewatch("--codec", "zstd", sample.name, cwd=sample.parent)
    assert (run.returncode, run.stderr) == (0, "")
    head, _, lines = run.stdout.partition("\n\n")
    assert head.startswith("zstd level 3 (zstandard ")
    assert "compressing pays where a job's writes move less than" in " ".join(head.split())
    assert CodecProfile.model_validate(yaml.safe_load(lines)["codec"]).name == "zstd"


def test_the_command_adds_a_codec_to_a_storages_profile_and_replaces_an_older_one(sample):
    profile = sample.parent / "storage-a.yaml"
    profile.write_text("name: a\nsequential_write: {per_stream_bytes_per_s: 1e8, aggregate_bytes_per_s: 1e9}\n")
    for words in (["zstd"], ["lz4"], ["zstd", "--level", "1"]):
        run = cachewatch("--codec", *words, sample, "-o", profile, cwd=sample.parent)
        assert run.returncode == 0, run.stderr
    storage = read_storage(profile)
    assert storage.name == "a"
    assert [(codec.name, codec.level) for codec in storage.codecs] == [("lz4", 0), ("zstd", 1)]
