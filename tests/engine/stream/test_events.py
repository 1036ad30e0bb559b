"""The events: each is written and read back as it is, each is described, and a reader is not disturbed by newer ones."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.engine.events import EVENTS, MalformedEvent, Stream, from_line, to_line

PAGE = (Path(__file__).parents[3] / "docs/events.md").read_text()
VALUES = {"int": 7, "float": 1.25, "str": "x é \udcff", "bool": True, "tuple": ("a", "b"), "Mapping": {"a": [1, None]}}


def filled(name: str):
    kind = EVENTS[name]
    return kind(**{one.name: VALUES[re.match(r"\w+", str(one.type))[0]] for one in fields(kind)})


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_read_back_as_it_was_written_and_with_fields_of_a_later_version(name):
    line = to_line(filled(name), 12.5)
    assert "\n" not in line
    assert from_line(line) == from_line(line[:-1] + ', "later": [1]}') == filled(name)
    assert json.loads(line)["event"] == name


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_described_with_each_of_its_fields(name):
    (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGE.partition("## `progress`")[0], re.M)
    described = PAGE.partition("## `progress`")[2] if name == "progress" else row
    assert [one.name for one in fields(EVENTS[name]) if f"`{one.name}`" not in described] == []


def test_the_lines_of_the_example_are_events():
    lines = [line.strip() for line in PAGE.splitlines() if line.startswith('    {"event"')]
    assert [from_line(line).event for line in lines] == ["ready", "progress", "bye"]


def test_an_event_of_a_later_version_is_none():
    assert from_line('{"event": "sneezed", "protocol": 1, "at": 1.5, "loudly": true}') is None


@given(
    st.one_of(
        st.binary(max_size=80), st.text(max_size=80), st.recursive(st.none() | st.text(), st.lists).map(json.dumps)
    )
)
def test_any_line_is_an_event_or_refused(line):
    try:
        from_line(line)
    except MalformedEvent as error:
        assert "\n" not in str(error)


def test_all_readers_are_told_in_one_order():
    first, second = [], []
    stream = Stream([lambda event, at: first.append((event, at)), lambda event, at: second.append((event, at))])
    for name in EVENTS:
        stream.tell(filled(name))
    assert first == second
    assert [event for event, _ in first] == [filled(name) for name in EVENTS]
