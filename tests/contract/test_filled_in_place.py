"""A file that has its size from the first moment on and is filled in place grows for its reader, though no size shows it."""

from tests.contract.harness import QUICK, Place

# Shorter than the healthy generators here run, and many times longer than each of their pauses.
WINDOW = (*QUICK, "--stall-after", "5s", "--first-write-within", "60s")
RESERVE = "fd = os.open(PLACE / 'cache/model.gguf', os.O_CREAT | os.O_RDWR); os.posix_fallocate(fd, 0, 60 << 20)\n"
ZEROS = "fd = os.open(PLACE / 'cache/model.gguf', os.O_CREAT | os.O_RDWR); os.pwrite(fd, bytes(60 << 20), 0)\n"
FILL = "for part in range(60):\n    os.pwrite(fd, os.urandom(1 << 20), part << 20); time.sleep(0.2)\n"


def test_filling_a_reserved_file_is_progress(place: Place) -> None:
    place.cache.mkdir()
    ran = place.exec(*WINDOW, command=place.program(RESERVE + FILL))
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.said
    assert "was not stopped" not in ran.said


def test_filling_a_reserved_file_through_a_mapping_is_progress(place: Place) -> None:
    place.cache.mkdir()
    fill = "import mmap\nm = mmap.mmap(fd, 60 << 20)\nfor part in range(60):\n    m[part << 20:(part << 20) + 4096] = os.urandom(4096); time.sleep(0.2)\n"
    ran = place.exec(*WINDOW, command=place.program(RESERVE + fill))
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.said


def test_filling_many_reserved_files_one_after_the_other_is_progress(place: Place) -> None:
    place.cache.mkdir()
    files = "for part in range(60):\n    fd = os.open(PLACE / f'cache/{part}', os.O_CREAT | os.O_RDWR); "
    reserve = f"{files}os.posix_fallocate(fd, 0, 2 << 20); os.close(fd)\ntime.sleep(1)\n"
    fill = f"{files}os.pwrite(fd, os.urandom(2 << 20), 0); os.close(fd); time.sleep(0.3)\n"
    ran = place.exec(*WINDOW, command=place.program(reserve + fill))
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.said
    assert "was not stopped" not in ran.said


def test_filling_a_file_of_zeros_is_seen_by_what_the_tree_writes_and_told(place: Place) -> None:
    place.cache.mkdir()
    ran = place.exec(*WINDOW, "--progress", "plain", command=place.program(ZEROS + FILL))
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.said
    assert "was not stopped (1 of 4)" in ran.said
    assert "was not stopped (1 of 4)" in ran.stderr
    assert "model.gguf" in ran.said


def test_a_stall_that_is_only_reported_is_not_reported_of_a_tree_that_fills_a_file(place: Place) -> None:
    place.cache.mkdir()
    ran = place.exec(*WINDOW, "--on-stall", "report", command=place.program(ZEROS + FILL))
    assert (ran.status, ran.report["outcome"], ran.report["would_be_stops"]) == (0, "completed", []), ran.said


def test_a_file_that_is_written_over_for_ever_is_a_stall_after_four_windows_more(place: Place) -> None:
    place.cache.mkdir()
    over = "while True:\n    os.pwrite(fd, os.urandom(1 << 20), 0); time.sleep(0.2)\n"
    ran = place.exec(*QUICK, "--stall-after", "2s", command=place.program(ZEROS + over))
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth")
    assert "was not stopped (4 of 4)" in ran.said
    assert "no disk write activity" not in ran.said
    assert "outside the watched" not in ran.said


HANGS = {
    "touched": "while True:\n    os.utime(PLACE / 'cache/beat'); time.sleep(0.2)\n",
    "written again": "while True:\n    (PLACE / 'cache/beat').write_text(str(time.time())[:12]); time.sleep(0.2)\n",
    "in place": "b = os.open(PLACE / 'cache/beat', os.O_RDWR)\nwhile True:\n    os.pwrite(b, str(time.time())[:12].encode(), 0); print('waiting', flush=True); time.sleep(0.2)\n",
}


def test_a_heartbeat_file_beside_a_hang_is_a_stall(place: Place) -> None:
    for how, hang in HANGS.items():
        place.cache.mkdir(exist_ok=True)
        begin = "(PLACE / 'cache/a.bin').write_bytes(os.urandom(90_000)); (PLACE / 'cache/beat').write_text('x' * 12)\n"
        ran = place.exec(*QUICK, "--stall-after", "3s", command=place.program(begin + hang))
        assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth"), how
        assert "was not stopped" not in ran.said, how
        assert (ran.report["diagnosis"] or {}).get("category") != "in_place_writes", how
