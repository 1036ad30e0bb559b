"""Which lines of an output are logged: a burst, the last ones of each look, and how many were left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefect_cachewatch.run.output_lines import LAST_LINES, OutputLines
from prefect_cachewatch.supervise.output import OutputPump


@pytest.fixture
def pump() -> Iterator[OutputPump]:
    pump = OutputPump()
    yield pump
    pump.finish()


def write(pump: OutputPump, first: int, last: int) -> None:
    pump._take(memoryview("".join(f"line {n}\n" for n in range(first, last)).encode()), 1)


def numbered(first: int, last: int) -> list[str]:
    return [f"line {n}" for n in range(first, last)]


def test_few_lines_are_shown_whole_and_once(pump: OutputPump) -> None:
    lines = OutputLines(pump)
    write(pump, 0, 3)
    assert lines.look() == numbered(0, 3)
    write(pump, 3, 5)
    assert (lines.look(), lines.look()) == (numbered(3, 5), [])


def test_a_burst_is_shown_then_the_last_fifty_of_each_look_and_the_others_are_counted(pump: OutputPump) -> None:
    lines = OutputLines(pump)
    write(pump, 0, 250)
    assert lines.look() == ["[... 50 lines of the output left out ...]", *numbered(50, 250)]
    write(pump, 250, 1500)
    assert lines.look() == ["[... 1,200 lines of the output left out ...]", *numbered(1450, 1500)]


def test_a_quiet_time_earns_a_burst_again(pump: OutputPump) -> None:
    lines = OutputLines(pump)
    write(pump, 0, 200)
    lines.look()
    for _ in range(10):
        assert lines.look() == []
    write(pump, 200, 400)
    assert lines.look() == numbered(200, 400)


def test_the_last_fifty_lines_are_shown_however_much_came_before(pump: OutputPump) -> None:
    lines = OutputLines(pump)
    shown = []
    for start in range(0, 3000, 300):
        write(pump, start, start + 300)
        shown += lines.look()
    write(pump, 3000, 3007)
    shown += lines.look(ended=True)
    assert [line for line in shown if line.startswith("line")][-LAST_LINES:] == numbered(3007 - LAST_LINES, 3007)
    told = [line for line in shown if line.startswith("line")]
    assert len(set(told)) == len(told)


def test_what_was_never_kept_is_said_in_bytes(pump: OutputPump) -> None:
    lines = OutputLines(pump)
    for start in range(0, 40_000, 1000):
        write(pump, start, start + 1000)
    first = lines.look()[0]
    assert "KiB and " in first and first.endswith("lines of the output left out ...]")


def test_a_secret_and_a_terminals_commands_are_not_shown(pump: OutputPump) -> None:
    lines = OutputLines(pump, ["hunter22"])
    pump._take(memoryview(b"using hunter22\n\x1b[2Jcleared\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345\n"), 1)
    shown = lines.look()
    assert shown[0] == "using ***"
    assert not any("hunter22" in line or "\x1b" in line or "hf_abc" in line for line in shown)


def test_the_last_line_needs_no_newline_at_the_end(pump: OutputPump) -> None:
    lines = OutputLines(pump)
    pump._take(memoryview(b"first\nKilled"), 1)
    assert lines.look() == ["first"]
    assert lines.look(ended=True) == ["Killed"]
