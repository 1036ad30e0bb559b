"""The growth chart: well-formed, scaled, the stall and earlier pauses shaded, small."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.report.chart import WIDTH, draw_report
from prefect_cachewatch.report.report import GrowthReport, Report, SampleReport, StallReport
from prefect_cachewatch.watching.stall import Suspicion

SVG = "{http://www.w3.org/2000/svg}"


def draw(samples: list[tuple[float, int]], end_s: float, stall_from_s: float | None = None, *pauses: Suspicion) -> str:
    stall = StallReport() if stall_from_s is None else StallReport("no_growth", 150.0, end_s - stall_from_s)
    points = [SampleReport(at_s, size, size) for at_s, size in samples]
    growth = GrowthReport(0, 0, 0, 0, 0.0, stall_from_s, suspected=list(pauses), samples=points)
    return draw_report(Report("stalled", stall, "", None, 15, "x", [], [], 1, "", end_s, growth))


def shapes(svg: str, tag: str, kind: str) -> list[ET.Element]:
    return [element for element in ET.fromstring(svg).iter(SVG + tag) if element.get("class") == kind]


def test_the_stall_is_shaded_from_the_last_growth_to_the_end() -> None:
    svg = draw([(0, 0), (300, 2**30)], 600, 300)
    (shade,) = shapes(svg, "rect", "stall")
    left, width = float(shade.get("x") or 0), float(shade.get("width") or 0)
    assert (left, width, left + width) == (390.0, 316.0, WIDTH - 14)
    assert [text.text for text in shapes(svg, "text", "note")] == ["no growth for 5 minutes"]
    assert 'aria-label="Bytes written: 1.00 GiB after 10 minutes, no growth for 5 minutes"' in svg


def test_earlier_pauses_have_a_shade_of_their_own_and_a_run_that_did_not_stall_has_no_other() -> None:
    svg = draw([(0, 0), (600, 2**30)], 600, None, Suspicion(90, 30, "", 120), Suspicion(500, 30, "", None))
    (pause,) = shapes(svg, "rect", "pause")
    assert (pause.get("x"), pause.get("width")) == ("137.2", "63.2")
    assert shapes(svg, "rect", "stall") == []


def test_the_axis_counts_in_powers_of_two() -> None:
    labels = [text.text for text in shapes(draw([(0, 0), (5, 1_200_000_000)], 5), "text", "axis bytes")]
    assert labels[:6] == ["0 B", "256 MiB", "512 MiB", "768 MiB", "1 GiB", "1.25 GiB"]


@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.integers(0, 10**16)), max_size=200),
    st.floats(0, 1e7),
    st.none() | st.floats(0, 1e7),
)
def test_any_samples_draw_a_small_document(
    samples: list[tuple[float, int]], end_s: float, from_s: float | None
) -> None:
    svg = draw(sorted(samples), end_s, from_s)
    ET.fromstring(svg)
    assert len(svg) < 30_000
    assert len(shapes(svg, "text", "axis")) + len(shapes(svg, "text", "axis bytes")) <= 24
    assert "nan" not in svg and "inf" not in svg
