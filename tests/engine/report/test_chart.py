"""The growth chart: well-formed, scaled, the stall window shaded, small."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.report.chart import WIDTH, draw_growth

SVG = "{http://www.w3.org/2000/svg}"


def shapes(svg: str, tag: str, kind: str) -> list[ET.Element]:
    return [element for element in ET.fromstring(svg).iter(SVG + tag) if element.get("class") == kind]


def test_the_stall_window_is_shaded_from_the_last_growth_to_the_end():
    svg = draw_growth([(0, 0, 0), (300, 2**30, 2**30)], end_s=600, stall_from_s=300)
    (shade,) = shapes(svg, "rect", "stall")
    left, width = float(shade.get("x") or 0), float(shade.get("width") or 0)
    assert (left, width) == (390.0, 316.0)
    assert left + width == WIDTH - 14
    assert "no growth for 5 minutes" in svg
    assert 'aria-label="Bytes written: 1.00 GiB after 10 minutes, no growth for 5 minutes"' in svg


def test_the_window_is_drawn_from_the_last_growth_and_earlier_pauses_have_a_shade_of_their_own():
    svg = draw_growth([(0, 0, 0), (300, 2**30, 2**30)], end_s=600, stall_from_s=300, window_s=150, pauses=[(60, 120)])
    (bracket,) = shapes(svg, "path", "window")
    assert bracket.get("d") == "M390.0 185V195M390.0 190H548.0M548.0 185V195"
    assert "window 2 min 30 s" in [text.text for text in shapes(svg, "text", "note")]
    (pause,) = shapes(svg, "rect", "pause")
    assert (pause.get("x"), pause.get("width")) == ("137.2", "63.2")


def test_a_run_that_did_not_stall_has_no_window_but_its_pauses():
    svg = draw_growth([(0, 0, 0), (5, 10, 10)], end_s=5, window_s=3, pauses=[(1, 2), (3, 4)])
    assert shapes(svg, "path", "window") == [] and len(shapes(svg, "rect", "pause")) == 2


def test_the_allocated_bytes_are_drawn_only_where_they_differ():
    assert shapes(draw_growth([(0, 0, 0), (5, 100, 100)], end_s=5), "path", "disk") == []
    assert len(shapes(draw_growth([(0, 100, 0), (5, 100, 100)], end_s=5), "path", "disk")) == 1


def test_the_axis_counts_in_powers_of_two():
    svg = draw_growth([(0, 0, 0), (5, 1_200_000_000, 1_200_000_000)], end_s=5)
    labels = [text.text for text in shapes(svg, "text", "axis bytes")]
    assert labels[:6] == ["0 B", "256 MiB", "512 MiB", "768 MiB", "1 GiB", "1.25 GiB"]


@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.integers(0, 10**16), st.integers(0, 10**16)), max_size=2000),
    st.floats(0, 1e7),
    st.none() | st.floats(0, 1e7),
)
def test_any_samples_draw_a_small_document(samples, end_s, stall_from_s):
    svg = draw_growth(sorted(samples), end_s=end_s, stall_from_s=stall_from_s)
    ET.fromstring(svg)
    assert len(svg) < 30_000
    assert len(shapes(svg, "text", "axis")) + len(shapes(svg, "text", "axis bytes")) <= 24
    assert "nan" not in svg and "inf" not in svg
