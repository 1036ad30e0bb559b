"""Durations and sizes, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.common.units import format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("30m 1h", 5400.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("7", 7.0),
        ("1e3", 1000.0),
        (" 5M ", 300.0),
        ("0", 0.0),
    ],
)
def test_a_duration_is_read_as_people_write_it(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "-5s", "s", "5x", "5m!", "1e3000", "1e3e3s", "3 0m", "nan", "inf", "5 minutes", "h1", "1..5s", "9" * 400],
)
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is not a duration: write it like 90s, 5m or 1h30m") as error:
        parse_duration(text)
    assert len(str(error.value)) < 120


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4KiB", 4096),
        ("10MB", 10_000_000),
        ("1.5GiB", 1_610_612_736),
        ("0.1KiB", 102),
        ("2e9", 2 * 10**9),
        ("1.5e3kB", 1_500_000),
        (".5kB", 500),
        ("9007199254740993", 9_007_199_254_740_993),
        ("0", 0),
    ],
)
def test_a_size_is_read_exactly(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "4 potatoes", "KiB", "1e600", "4 Ki", "nan", "4KiB4", "1.2.3MB", "9" * 400])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is not a size: write it like 4096, 4KiB or 10MB") as error:
        parse_bytes(text)
    assert len(str(error.value)) < 120


@given(st.integers(min_value=0, max_value=2**63))
def test_every_whole_number_of_bytes_is_read_back(size):
    assert parse_bytes(str(size)) == size
    assert parse_bytes(f"{size}KiB") == size * 1024


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1023.9, "1.00 KiB"),
        (1024, "1.00 KiB"),
        (10 * 1024 - 1, "10.0 KiB"),
        (1_159_641_170, "1.08 GiB"),
        (12_345_678_901, "11.5 GiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_a_size_is_written_with_three_digits(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.3, "0.3 s"),
        (9.97, "10 s"),
        (59.6, "1 minute"),
        (60, "1 minute"),
        (72, "72 s"),
        (150, "2 min 30 s"),
        (300, "5 minutes"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (604800, "7 days"),
        (180000, "2 days 2 h"),
        (1e300, "1.2e+295 days"),
    ],
)
def test_a_duration_is_written_for_a_person(seconds, text):
    assert format_duration(seconds) == text
