"""report.html in a real browser: hostile names run nothing and fetch nothing; it sorts, filters, fits, prints."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from prefect_cachewatch.evidence.model import (
    Evidence,
    FilesystemFacts,
    GrowthFacts,
    IoCounters,
    ProcessFacts,
    PythonThread,
    ThreadFacts,
)
from prefect_cachewatch.evidence.rules import find_cause
from prefect_cachewatch.report.bundle import BundleContent, write_bundle
from prefect_cachewatch.report.report import (
    DirectoryTotal,
    GrowthReport,
    Listing,
    ListingEntry,
    Report,
    SampleReport,
    StallReport,
    StopSection,
)
from prefect_cachewatch.supervise.open_files import OpenFile

pytestmark = pytest.mark.ui
OWN = "document.title='owned';window.owned=1"
HOSTILE = [
    f"<script>{OWN}</script>",
    f"</td></table></pre></textarea><script>{OWN}</script>",
    f'"><img src=x onerror="{OWN}">',
    f"' onmouseover='{OWN}' x='",
    f"<svg onload={OWN}>",
    f"javascript:{OWN}",
    "<img src=http://127.0.0.1:9/leak>",
    "<link rel=stylesheet href=//127.0.0.1:9/x.css>",
    "<iframe src=//127.0.0.1:9/></iframe>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<base href=http://127.0.0.1:9/>",
    "<!--",
    "&lt;script&gt;&#x3c;b&#62;",
    "a\u202egnp.exe",
    "zero\u200bwidth",
    "esc\x1b[2J\x07\r\n",
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """A bundle in which every text that comes from outside is hostile."""
    root = tmp_path_factory.mktemp("hostile")
    cache = root / "cache"
    cache.mkdir()
    for index, name in enumerate(HOSTILE):
        (cache / name.replace("/", "∕")).write_bytes(b"x" * index)
    (root / os.fsdecode(b"\xff\xfe")).touch()
    everything = "".join(HOSTILE)
    threads = (ThreadFacts(7, everything, "S", "futex_do_wait", "futex", kernel_stack=tuple(HOSTILE)),)
    process = ProcessFacts(
        7, 1, HOSTILE[0], ("python", *HOSTILE), cpu_s=4.0, cpu_in_window_s=0.0, resident_bytes=1 << 30, threads=threads,
        io_in_window=IoCounters(), python_threads=(PythonThread(7, everything, tuple(HOSTILE)),),
        files=tuple(OpenFile(fd, name, "file", "w", 10, True, fd, 100, 1.0) for fd, name in enumerate(HOSTILE)),
        file_count=len(HOSTILE),
    )  # fmt: skip
    child = ProcessFacts(8, 7, "g++", ("g++", "-O2"), state="Z")
    samples = tuple((t * 10.0, int(1.1e9 * min(1, t / 30)), int(1.0e9 * min(1, t / 30))) for t in range(61))
    evidence = Evidence(
        window_s=300, growth=GrowthFacts(window_s=300, bytes_written=10**9, first_write_s=2.0),
        processes=(process, child), process_count=2, log_tail=everything,
        filesystems=(FilesystemFacts(HOSTILE[2], HOSTILE[4], HOSTILE[0], "/", (HOSTILE[0],)),),
    )  # fmt: skip
    entries = [
        ListingEntry(
            f"{cache}/{name}", 1000 * (len(HOSTILE) - index), 4096, "2026-11-20T14:00:00.000+00:00", index * 10.0,
            ["suspect_partial"],
        )
        for index, name in enumerate(HOSTILE)
    ]  # fmt: skip
    growth = GrowthReport(
        1159641170, 1159641170, 1159641170, 43, 2.0, 300.0, 12.0, samples=[SampleReport(*sample) for sample in samples]
    )
    report = Report(
        "stalled", StallReport("no_growth", 300.0, 300.0), everything, None, 15, everything, HOSTILE, [str(cache)], 1,
        "2026-11-20T14:00:00.000+00:00", 600.2, growth, StopSection(300.0, 0.01, [], [], []),
        Listing(len(entries), 5, False, entries, [DirectoryTotal(HOSTILE[0], 3, 5)]), HOSTILE, HOSTILE, headline=everything,
    )  # fmt: skip
    content = BundleContent(report, evidence, find_cause(evidence), [str(cache)], log_tail=everything.encode() * 3)
    path, _ = write_bundle(content, root / "bundles")
    assert path is not None
    return Path(path)


@pytest.fixture
def page(bundle):
    return (bundle / "report.html").as_uri()


def test_no_script_runs_from_data_and_no_request_leaves(browser, page, pictures):
    browser.open(page)
    browser.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    browser.evaluate("new Promise((done) => setTimeout(done, 500))")
    assert browser.requests == [page]
    assert browser.dialogs == []
    assert browser.evaluate("window.owned") is None
    assert browser.evaluate("document.title") != "owned"
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.querySelectorAll('iframe, link, base, a, form, object, embed').length") == 0
    handlers = "[...document.querySelectorAll('*')].some((e) => [...e.attributes].some((a) => a.name.startsWith('on')))"
    assert browser.evaluate(handlers) is False
    assert browser.errors == []
    shown = browser.text()
    assert "<script>" in shown and "esc\\x1b[2J\\x07\\r\\n" in shown and "\\u202egnp.exe" in shown
    browser.screenshot(pictures / "page-hostile.png", whole=True)


def test_a_script_that_got_into_the_page_would_not_run_either(browser, page):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1.0)
        browser.open(page)
        browser.evaluate(
            "{ const s = document.createElement('script'); s.textContent = 'window.owned = 1'; document.body.append(s);"
            f"const i = new Image(); i.src = 'http://127.0.0.1:{server.getsockname()[1]}/x'; document.body.append(i); 0 }}"
        )
        with pytest.raises(TimeoutError):
            server.accept()
    assert browser.evaluate("window.owned") is None


def test_the_verdict_the_cause_and_the_next_step_stand_above_the_fold(browser, page):
    browser.open(page, height=800)
    for selector in (".tags", ".cause", ".next", ".chart svg"):
        assert browser.evaluate(f"document.querySelector('{selector}').getBoundingClientRect().top") < 800


def test_the_listing_sorts_and_filters(browser, page):
    browser.open(page)
    sizes = "[...document.querySelectorAll('#files tbody tr:not([hidden]) td:nth-child(4) span')].map((s) => +s.dataset.value)"
    browser.evaluate("document.querySelectorAll('#files th')[3].click()")
    ascending = browser.evaluate(sizes)
    assert len(ascending) == len(HOSTILE) and ascending == sorted(ascending)
    browser.evaluate("document.querySelectorAll('#files th')[3].click()")
    assert browser.evaluate(sizes) == sorted(ascending, reverse=True)
    assert browser.evaluate("document.querySelectorAll('#files th')[3].getAttribute('aria-sort')") == "descending"
    browser.evaluate(
        "{ const f = document.getElementById('filter'); f.value = 'ZERO'; f.dispatchEvent(new Event('input')); 0 }"
    )
    assert len(browser.evaluate(sizes)) == 1
    assert browser.evaluate("document.getElementById('matches').textContent") == f"1 of {len(HOSTILE)}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser, page, pictures, scheme):
    browser.open(page, width=390, height=844, mobile=True, scheme=scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.evaluate("parseFloat(getComputedStyle(document.querySelector('.cause')).fontSize)") >= 16
    browser.screenshot(pictures / f"page-phone-{scheme}.png")


def test_dark_is_dark_and_light_is_light(browser, page):
    brightness = (
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => +a + +b, 0)"
    )
    browser.open(page, scheme="light")
    assert browser.evaluate(brightness) > 600
    browser.open(page, scheme="dark")
    assert browser.evaluate(brightness) < 150
    assert browser.evaluate("getComputedStyle(document.querySelector('svg .bg')).fill") == "rgb(20, 24, 29)"


def test_it_prints_without_its_controls(browser, page):
    browser.open(page)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert browser.evaluate("getComputedStyle(document.querySelector('.scroll')).maxHeight") == "none"
    browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.pdf().startswith(b"%PDF")


def test_in_print_no_table_is_cut_and_every_stack_is_open(browser, page):
    browser.open(page, width=700, height=1000)
    browser.call("Emulation.setEmulatedMedia", media="print")
    wide = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
    stacks = "[...document.querySelectorAll('details pre, details table')].map((e) => e.getBoundingClientRect().height)"
    assert browser.evaluate(wide) == 0
    heights = browser.evaluate(stacks)
    assert heights and min(heights) > 10
    browser.call("Emulation.setEmulatedMedia", media="")
    shut = "document.querySelectorAll('details:not([open])').length"
    before = browser.evaluate(shut)
    assert before > 0
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate(shut) == 0
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(shut) == before


def test_on_a_phone_the_chart_s_words_can_be_read(browser, page):
    browser.open(page, width=400, height=844, mobile=True)
    words = "[...document.querySelectorAll('.chart text')].map((e) => e.getBoundingClientRect())"
    assert min(browser.evaluate(f"{words}.map((r) => r.height)")) >= 10
    assert browser.evaluate(f"{words}.every((r) => r.left >= 0 && r.right <= 400)")


def test_a_click_copies_the_command_that_judges_the_run_again(browser, page):
    browser.open(page)
    assert browser.evaluate("document.getElementById('replay').textContent").startswith("cachewatch replay /")
    browser.evaluate("document.getElementById('copy').click()")
    browser.wait_for("document.getElementById('copy').textContent === 'Copied'")
    assert browser.evaluate("getSelection().toString()").startswith("cachewatch replay /")


def test_on_a_phone_no_file_and_no_line_of_the_log_runs_off_the_screen(browser, page):
    browser.open(page, width=400, height=844, mobile=True)
    blocks = "[...document.querySelectorAll('pre, .scroll:has(#files)')]"
    assert browser.evaluate(f"{blocks}.length >= 2 && {blocks}.every((e) => e.scrollWidth <= e.clientWidth)")
