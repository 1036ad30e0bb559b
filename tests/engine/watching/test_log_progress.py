"""Progress in the output: what is news, by literals; the search in a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from prefect_cachewatch.watching.log_progress import LogProgress, News, read_count
from prefect_cachewatch.watching.matcher import Match
from support import eventually

COUNT = r"shards: .*\| (?P<done>\d+)/(?P<total>\d+)"

SHARD = r"shard (?P<done>\d+)/(?P<total>\d+)"


def count(done: object, total: object = 4, label: str = "", pattern: int = 0) -> Match:
    return Match(pattern, str(done), str(total), label, f"shard {done}/{total}")


def text(words: str, pattern: int = 0) -> Match:
    return Match(pattern, "", "", "", words)


def test_a_count_is_progress_only_beyond_its_highest():
    news = News()
    taken = [news.take(count(done), at_s) for at_s, done in enumerate([0, 1, 1, 0, 1, 2, 2, 4, 3])]
    assert taken == [True, True, False, False, False, True, False, True, False]
    assert (news.last.count, news.last.first_at_s, news.last.last_at_s) == (4, 0, 7)


def test_counts_are_told_apart_by_pattern_total_and_label():
    news = News()
    assert news.take(count(4), 1)
    assert [news.take(each, 2) for each in (count(1), count(1, 8), count(1, 4, "rank 1"), count(1, pattern=1))] == [
        False, True, True, True,
    ]  # fmt: skip


def test_a_text_is_progress_once():
    news = News()
    words = ["graph 1 took 2 s", "graph 2 took 2 s", "graph 1 took 2 s", "graph 2 took 2 s"]
    assert [news.take(text(each), 1) for each in words] == [True, True, False, False]
    assert (news.last.percent, news.last.done, news.last.text) == (None, None, "graph 2 took 2 s")


def test_percentage_and_time_left_follow_from_the_pace_since_the_first_count():
    news = News()
    news.take(count(2, 10), 100)
    assert (news.last.percent, news.last.left_s) == (20.0, None)
    news.take(count(4, 10), 120)
    assert (news.last.percent, news.last.left_s) == (40.0, 60.0)
    news.take(count(12, 10), 130)
    assert (news.last.percent, news.last.left_s) == (100.0, 0.0)
    news.take(count(1, 0), 140)
    assert (news.last.percent, news.last.left_s) == (None, None)


@pytest.mark.parametrize(
    ("written", "read"),
    [("7", 7.0), ("1,204", 1204.0), ("12.5", 12.5), ("2.1G", 2.1e9), ("300k", 3e5), ("?", None), ("", None),
     ("1.2.3", None), ("-4", None), ("9" * 400, None), (".", None)],
)  # fmt: skip
def test_numbers_are_read_as_progress_bars_print_them(written, read):
    assert read_count(written) == read


def test_what_was_not_seen_for_longest_is_forgotten_first():
    news = News()
    for number in range(4096):
        news.take(text(f"step {number}"), 1)
    assert not news.take(text("step 0"), 2)
    assert news.take(text("step 4096"), 3)
    assert not news.take(text("step 0"), 4)
    assert news.take(text("step 1"), 5)


@contextmanager
def searching(*patterns: str) -> Iterator[LogProgress]:
    progress = LogProgress(patterns)
    progress.prepare()
    progress.begin(time.monotonic())
    try:
        yield progress
    finally:
        progress.close()


def feed(progress: LogProgress, data: bytes) -> None:
    progress.feed(memoryview(data))


def counted(progress: LogProgress) -> int:
    return progress.last.count if progress.last is not None else 0


def test_a_bar_that_is_redrawn_counts_at_each_step_also_before_its_line_ends():
    with searching(COUNT) as progress:
        feed(progress, b"loading\nshards:   0%| 0/3 [00:00")
        assert eventually(lambda: counted(progress) == 1)
        feed(progress, b"\rshards:  33%|# | 1/3 [00:07")
        assert eventually(lambda: counted(progress) == 2)
        feed(progress, b"\rshards:  66%|## | 2/3 [00:12")
        assert eventually(lambda: counted(progress) == 3)
        assert (progress.last.done, progress.last.total, progress.last.percent) == (2.0, 3.0, 66.7)
        feed(progress, b"\rshards:  66%|## | 2/3 [00:13\rshards:  66%|## | 2/3 [00:14\n")
    assert (counted(progress), progress.problems) == (3, [])


def test_a_line_in_pieces_is_one_line_and_the_end_of_the_output_is_searched():
    with searching(r"layer \d+ of (?P<what>\w+)") as progress:
        for piece in (b"la", b"yer 1", b"2 of llama\nlayer 1", b"3 of llama"):
            feed(progress, piece)
    assert (counted(progress), progress.last.text) == (2, "layer 13 of llama")


def test_several_patterns_count_each_for_itself_in_the_order_of_their_lines():
    with searching(COUNT, r"compiled graph \d+", r"(?P<done>\d+)%") as progress:
        feed(progress, b"compiled graph 1\ncompiled graph 2\n10%\n10%\n20%\n")
    assert (counted(progress), progress.last.done, progress.last.percent) == (4, 20.0, None)


def test_output_that_comes_faster_than_it_is_searched_is_left_out_and_bounded():
    progress = LogProgress([COUNT])  # not begun: nothing is searched
    for number in range(200):
        feed(progress, b"x" * 65535 + b"\n" + f"shards: | {number}/200 [".encode())
    assert len(progress._waiting) <= 4 << 20
    assert "of output were not searched for progress" in progress.problems[0]
    progress._thread.start()
    progress.close()
    assert progress.last.done == 199


def test_a_line_that_never_ends_is_searched_while_it_is_printed():
    progress = LogProgress([SHARD])
    progress.prepare()
    end_s = time.monotonic() + 30
    number = 0
    while progress.last is None and time.monotonic() < end_s:
        number += 1
        progress.feed(memoryview(b"shard %d/900 " % number))
        time.sleep(0.02)  # never quiet for as long as a bar would be
    assert progress.last is not None and number > 1
    progress.close()


def test_what_is_left_out_makes_no_line_of_two_halves():
    progress = LogProgress([SHARD])
    for start in range(0, 400_000, 1000):
        progress.feed(memoryview(b"".join(b"shard %d/900\n" % number for number in range(start, start + 1000))[:-5]))
    progress.prepare()
    progress.feed(memoryview(b"shard 7/8"))
    progress.close()
    assert progress.last is not None and progress.last.total in (900.0, 8.0)
    assert "were not searched" in progress.problems[0]
