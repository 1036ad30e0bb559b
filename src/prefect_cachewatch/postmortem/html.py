"""The post-mortem as one self-contained HTML page; it opens from disk and loads nothing.

Every string from outside goes through `for_html`. The content security policy allows
one style sheet and one script, by their hashes, and images from `data:` only.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prefect_cachewatch.common.text import for_html
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.postmortem.chart import CHART_STYLE
from prefect_cachewatch.postmortem.model import Evidence, ProcessFacts
from prefect_cachewatch.postmortem.view import describe_holder
from prefect_cachewatch.postmortem.where import describe_attempt, where_rows
from prefect_cachewatch.watching.headline import UNSEEN, split_message
from prefect_cachewatch.watching.learned import LearnedWindow
from prefect_cachewatch.watching.leaving import describe_would_be_stops
from prefect_cachewatch.watching.outcomes import describe_last
from prefect_cachewatch.watching.sections import Diagnosis, LoggedProgress, ReportedStall

_MAX_ROWS = 2000
_MAX_LOG_LINES = 500
_MAX_PROCESSES = 300
_LOGGED = "log: "
_SECRETS_NOTE = "Command lines and the log are redacted; no environment is ever stored."


STYLE = """
:root{--bg:#f6f7f9;--card:#fff;--ink:#1b2129;--soft:#5b6470;--rule:#e1e5ea;--bad:#b3243a;--badbg:#fbe9ec;
--accent:#2458c5;--code:#f2f4f7}
@media (prefers-color-scheme:dark){:root{--bg:#0f1216;--card:#171b21;--ink:#e6eaf0;--soft:#9aa5b1;--rule:#2a313a;
--bad:#ff8a98;--badbg:#3a1a20;--accent:#7aa5ff;--code:#10141a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:16px}
header,section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:16px 20px;margin:0 0 14px}
header{border-left:5px solid var(--bad)}
h1{font-size:1.35rem;margin:.2em 0;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:0 0 .6em}h3{font-size:.95rem}
.cause{font-size:1.2rem;font-weight:600;margin:.3em 0;overflow-wrap:anywhere}
.next{background:var(--badbg);border-radius:8px;padding:10px 12px;margin:.6em 0;overflow-wrap:anywhere}
.message,.soft,footer{color:var(--soft)}.message{margin:.4em 0 0;overflow-wrap:anywhere}
.tags{margin:0}.tag{display:inline-block;border-radius:99px;padding:1px 10px;font-size:.8rem;background:var(--accent);
color:var(--card);white-space:nowrap}.tag.bad{background:var(--bad)}.tag.quiet{background:var(--code);color:var(--soft);
border:1px solid var(--rule)}
.chart{margin:0}.chart svg{width:100%;height:auto;display:block}
.numbers{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px 18px;margin:14px 0 0}
.numbers div{min-width:0}.numbers .wide{grid-column:1/-1}dt{color:var(--soft);font-size:.8rem}dd{margin:0;overflow-wrap:anywhere}
.lines{margin:0;padding-left:1.1em}.lines li{overflow-wrap:anywhere;margin:.15em 0}
.scroll{overflow-x:auto;max-height:70vh;overflow-y:auto;border:1px solid var(--rule);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;padding:5px 10px;border-bottom:1px solid var(--rule);vertical-align:top}
thead th{position:sticky;top:0;background:var(--card);white-space:nowrap;font-weight:600}
#files thead th{cursor:pointer}#files th[aria-sort=ascending]::after{content:" \\2191"}
#files th[aria-sort=descending]::after{content:" \\2193"}
td.number,th.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.path{overflow-wrap:anywhere;min-width:220px}td.pid{white-space:nowrap}
code,pre{font:12.5px/1.45 ui-monospace,"SF Mono",Menlo,Consolas,monospace}
pre{background:var(--code);border-radius:8px;padding:10px;overflow-x:auto;margin:.5em 0;max-height:70vh}
details{margin:.3em 0}summary{cursor:pointer;overflow-wrap:anywhere}details .scroll{margin:.4em 0}
.copied code{user-select:all;overflow-wrap:anywhere;background:var(--code);border-radius:6px;padding:4px 8px}
.copied button{font:inherit;font-size:.82rem;border:1px solid var(--rule);border-radius:6px;background:var(--card);
color:inherit;padding:2px 10px;cursor:pointer}figcaption{font-size:.82rem;margin:.3em 0 0}
.controls input{font:inherit;color:inherit;background:var(--code);border:1px solid var(--rule);border-radius:8px;
padding:5px 10px;width:min(320px,100%)}
footer{font-size:.82rem;padding:0 4px 24px;overflow-wrap:anywhere}
@media (max-width:600px){main{padding:8px}header,section{padding:12px;border-radius:8px}
#files th:nth-child(5),#files td:nth-child(5){display:none}td.path{min-width:110px}th,td{padding:4px 5px}#files{font-size:.8rem}#files .tag{font-size:.7rem;padding:0 6px;white-space:normal;
overflow-wrap:anywhere}pre{white-space:pre-wrap;overflow-wrap:anywhere}}
@media print{body{background:#fff;color:#000}header,section{border:0;border-bottom:1px solid #999;border-radius:0;
break-inside:auto;padding:8px 0}main{max-width:none;padding:0}.scroll,pre{max-height:none;overflow:visible}
pre{white-space:pre-wrap;overflow-wrap:anywhere}.controls,.copied button{display:none}tr{break-inside:avoid}
table{font-size:7.5pt}th,td{padding:2px 4px}thead th{position:static;white-space:normal}td.path{min-width:44mm}
td code{font-size:7pt}details::details-content{content-visibility:visible;display:block;height:auto}}
@page{margin:12mm}
"""

SCRIPT = """
(() => {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((each) => { each.open = false; }));
  const copy = document.getElementById("copy");
  if (copy) copy.addEventListener("click", async () => {
    const text = document.getElementById("replay");
    getSelection().selectAllChildren(text);
    try { await navigator.clipboard.writeText(text.textContent); }
    catch { document.execCommand("copy"); }
    copy.textContent = "Copied";
  });
})();
(() => {
  const table = document.getElementById("files");
  if (!table) return;
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, i) => {
    const held = row.cells[i].querySelector("[data-value]");
    return held ? Number(held.dataset.value) : row.cells[i].textContent;
  };
  const sort = (i) => {
    const up = heads[i].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[i].setAttribute("aria-sort", up ? "ascending" : "descending");
    const order = rows.map((row) => [value(row, i), row]);
    order.sort(([a], [b]) => (typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1));
    body.append(...order.map(([, row]) => row));
  };
  heads.forEach((head, i) => {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(i));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(i); });
  });
  const filter = document.getElementById("filter"), matches = document.getElementById("matches");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase();
    let count = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(words);
      count += !row.hidden;
    }
    matches.textContent = words ? count + " of " + rows.length : "";
  });
})();
"""


def render_page(report: Mapping[str, Any], evidence: Evidence, diagnosis: Diagnosis, svg: str, log: str = "") -> str:
    """Write the page.

    Args:
        report: the JSON object of `--report`.
        evidence: what was collected.
        diagnosis: its reading.
        svg: the growth chart, from `draw_growth`.
        log: the redacted end of the log.

    Returns:
        A complete HTML document without any address in it.
    """
    name = for_html(str(report.get("name") or "tensor cache"))
    body = "".join(
        (
            _verdict(report, diagnosis, name),
            f'<section><h2>Growth</h2><figure class="chart">{svg}{_legend(report)}</figure>{_numbers(report, evidence)}'
            f"{_replay(report, evidence)}</section>",
            _section("Would have been stopped", _items(_would_be_stops(report))),
            _section("Evidence", _items(line for line in diagnosis.evidence if not line.startswith(_LOGGED))),
            _section("What its log says of it", _said(diagnosis)),
            _listing(report.get("listing")),
            _section("Process tree", _processes(evidence)),
            _section("Open files, sockets, locks", _holdings(evidence)),
            _section("Storage, memory and pressure", _machine(evidence)),
            _section("Stacks", _stacks(evidence)),
            _section("End of the log", _log(log, evidence.output_seen)),
            _notes(report, evidence),
        )
    )
    style = STYLE
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(style)} {_hash(CHART_STYLE)}; script-src {_hash(SCRIPT)}"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{name}: {for_html(diagnosis.category)}</title><style>{style}</style></head>"
        f"<body><main>{body}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _legend(report: Mapping[str, Any]) -> str:
    stalled = bool((report.get("stall") or {}).get("kind"))
    paused = any(one.get("cleared_at_s") for one in (report.get("growth") or {}).get("suspected") or ())
    words = ["red: the pause that was judged a stall, with its window"] * stalled
    words += ["amber: earlier pauses that looked like one and were over"] * paused
    return f'<figcaption class="soft">{"; ".join(words).capitalize()}.</figcaption>' if words else ""


def _replay(report: Mapping[str, Any], evidence: Evidence) -> str:
    """The command that judges the growth of this run again, which starts no generator."""
    bundle, stall = report.get("bundle"), report.get("stall") or {}
    samples = evidence.growth.samples
    if not bundle or len(samples) < 3:
        return ""
    words = ["cachewatch", "replay", f"{bundle}/growth.jsonl"]
    window = {"no_growth": "--stall-after", "never_started": "--first-write-within"}.get(str(stall.get("kind")))
    if window and stall.get("window_s"):
        words += [window, f"{stall['window_s']:g}s"]
    steps = sorted(after[0] - before[0] for before, after in itertools.pairwise(samples))
    words += ["--poll", f"{max(0.1, steps[len(steps) // 2]):.1f}s"]
    return (
        "<h3>Judge it again, with this window or another</h3>"
        f'<p class="copied"><code id="replay">{for_html(shlex.join(words), 5000)}</code> '
        '<button id="copy" type="button">Copy</button></p>'
    )


def _find_sha256() -> Any:
    """Python's own one: hashlib loads OpenSSL, half a megabyte in each process that may write a page."""
    for name in ("_sha2", "_sha256", "hashlib"):  # from Python 3.12 on, before, and where it was left out
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).sha256
    raise AssertionError("no Python is without hashlib")


_sha256 = _find_sha256()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(_sha256(text.encode()).digest()).decode()}'"


def _verdict(report: Mapping[str, Any], diagnosis: Diagnosis, name: str) -> str:
    outcome = for_html(str(report.get("outcome") or "stalled"))
    kind = (report.get("stall") or {}).get("kind")
    tags = [f'<span class="tag bad">{outcome}</span>']
    if diagnosis.category != report.get("outcome"):  # of a cancelled attempt nothing else is known
        tags.append(f'<span class="tag">{for_html(diagnosis.category)}</span>')
        if kind:
            tags.append(f'<span class="tag quiet">{for_html(str(kind))}</span>')
        tags.append(f'<span class="tag quiet">confidence {for_html(diagnosis.confidence)}</span>')
    summary = for_html(diagnosis.summary[:1].upper() + diagnosis.summary[1:], 600)
    first, facts = split_message(str(report.get("message") or ""))
    sentence = (report.get("retry") or {}).get("sentence")
    retry = f'<p class="next"><strong>Retry.</strong> {for_html(str(sentence), 1000)}.</p>' if sentence else ""
    return (
        f'<header><p class="tags">{" ".join(tags)}</p><h1>{name}</h1>'
        f'<p class="cause">{summary}.</p>'
        f'<p class="next"><strong>Next step.</strong> {for_html(diagnosis.resolution, 1000)}</p>{retry}'
        f'<p class="message">{for_html(facts or first, 1000)}</p></header>'
    )


def _numbers(report: Mapping[str, Any], evidence: Evidence) -> str:
    growth: Mapping[str, Any] = report.get("growth") or {}
    stop: Mapping[str, Any] = report.get("stop") or {}
    rows: list[tuple[str, str]] = []

    def add(label: str, value: Any, write: Any = str) -> None:
        if value is not None:
            rows.append((label, write(value)))

    where = report.get("where") or {}
    if attempt := report.get("attempt"):
        add("Attempt", describe_attempt(attempt, where.get("attempts")))
    rows += where_rows(where)
    add("Started", report.get("started_at"), lambda at: str(at)[:19].replace("T", " ") + " UTC")
    add("Duration", report.get("duration_s"), format_duration)
    add("Bytes written", growth.get("bytes_written"), format_bytes)
    add("Bytes present", growth.get("bytes_present"), format_bytes)
    add("Files", growth.get("files_present"), lambda n: f"{n:,}")
    add("First write after", growth.get("first_write_s"), format_duration)
    add("Last growth after", growth.get("last_growth_s"), format_duration)
    add("Longest pause", growth.get("longest_pause_s"), format_duration)
    add("Progress told", report.get("logged"), lambda told: describe_last(LoggedProgress(**told)))
    add("Learned", report.get("learned"), lambda learned: str(LearnedWindow(**learned)))
    add("Tree gone after", stop.get("gone_after_s"), lambda s: f"{s:.2f} s")
    add("Exit code", report.get("exit_code"))
    add("Signal", report.get("signal"))
    add("Command", " ".join(map(str, report.get("command") or ())) or None)
    add("Evidence taken in", evidence.took_s or None, lambda s: f"{s:.2f} s")
    cells = "".join(
        f"<div{' class=wide' if len(value) > 40 else ''}><dt>{for_html(label)}</dt><dd>{for_html(value, 600)}</dd></div>"
        for label, value in rows
    )
    return f'<dl class="numbers">{cells}</dl>'


def _would_be_stops(report: Mapping[str, Any]) -> list[str]:
    return describe_would_be_stops([ReportedStall(**one) for one in report.get("would_be_stops") or ()])


def _section(title: str, body: str) -> str:
    return f"<section><h2>{for_html(title)}</h2>{body}</section>" if body else ""


def _items(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{for_html(line, 500)}</li>" for line in lines)
    return f'<ul class="lines">{items}</ul>' if items else ""


def _table(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], attributes: str = "") -> str:
    # `heads`: (title, class); the cells are HTML already.
    head = "".join(f'<th scope="col" class="{kind}">{for_html(title)}</th>' for title, kind in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, (_, kind) in zip(row, heads, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table {attributes}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _listing(listing: Mapping[str, Any] | None) -> str:
    if not listing:
        return _section("Files", "<p>The cache directory could not be listed.</p>")
    entries: list[Mapping[str, Any]] = list(listing.get("entries") or [])
    total = f"{int(listing.get('total_files') or 0):,} files, {format_bytes(listing.get('total_bytes') or 0)}"
    rows = (
        (
            f"<bdi>{for_html(str(entry['path']), 1000)}</bdi>",
            " ".join(f'<span class="tag quiet">{for_html(str(flag))}</span>' for flag in entry.get("flags") or ()),
            f'<span data-value="{float(entry["age_s"])}">{format_duration(max(0.0, entry["age_s"]))}</span>',
            f'<span data-value="{int(entry["size_bytes"])}">{format_bytes(entry["size_bytes"])}</span>',
            f'<span data-value="{int(entry["allocated_bytes"])}">{format_bytes(entry["allocated_bytes"])}</span>',
        )
        for entry in entries[:_MAX_ROWS]
    )
    table = _table(
        (("File", "path"), ("Flags", ""), ("Age", "number"), ("Size", "number"), ("On disk", "number")),
        rows,
        'id="files"',
    )
    rest: list[Mapping[str, Any]] = list(listing.get("rest") or [])
    more = ""
    if rest:
        more = "<h3>Files not listed, by directory</h3>" + _table(
            (("Directory", "path"), ("Files", "number"), ("Bytes", "number")),
            (
                (for_html(str(r["path"]), 1000), f"{int(r['files']):,}", format_bytes(r["bytes"]))
                for r in rest[:_MAX_ROWS]
            ),
        )
    shown = f", {min(len(entries), _MAX_ROWS):,} shown" if len(entries) != listing.get("total_files") else ""
    controls = (
        '<p class="controls"><label>Filter <input id="filter" type="search" autocomplete="off" '
        'placeholder="part of a path or a flag"></label> <output id="matches"></output></p>'
    )
    return (
        f"<section><h2>Files</h2><p>{total}{shown}; what may be cut first, then what grew last. A click on a column's head sorts.</p>"
        f"{controls}{table}{more}</section>"
    )


def _processes(evidence: Evidence) -> str:
    if not evidence.processes:
        why = [missing.why for missing in evidence.missing if missing.part == "processes"]
        return f"<p>{for_html(' '.join(why)).capitalize() or 'No process of the generator was left'}.</p>"
    depth: dict[int, int] = {}
    rows = []
    for process in evidence.processes[:_MAX_PROCESSES]:
        level = depth[process.pid] = depth.get(process.parent_pid, -1) + 1
        main = process.threads[0] if process.threads else None
        waits = (main.syscall or main.wait_channel) if main else ""
        io = process.io_in_window
        rows.append(
            (
                f"{'&ensp;' * min(level, 12)}{process.pid}",
                f"<code>{for_html(' '.join(process.argv) or process.name, 300)}</code>",
                for_html(f"{process.state} {waits}"),
                f"{process.thread_count}",
                f"{process.cpu_s:.1f} s",
                "" if process.cpu_in_window_s is None else f"{process.cpu_in_window_s:.1f} s",
                "" if process.resident_bytes is None else format_bytes(process.resident_bytes),
                "" if process.swap_bytes is None else format_bytes(process.swap_bytes),
                "" if io is None else f"{format_bytes(io.read_chars)} / {format_bytes(io.write_chars)}",
                format_duration(process.age_s),
                f"{process.nice}",
            )
        )
    heads = (
        ("Pid", "pid"), ("Command", "path"), ("State", ""), ("Threads", "number"), ("CPU", "number"),
        ("in window", "number"), ("Resident", "number"), ("Swap", "number"), ("Read / written in window", "number"),
        ("Age", "number"), ("Nice", "number"),
    )  # fmt: skip
    hidden = evidence.process_count - len(rows)
    more = f"<p>{hidden} more processes are in processes.json.</p>" if hidden > 0 else ""
    return _table(heads, rows) + more


def _holdings(evidence: Evidence) -> str:
    locks = _items(
        f"pid {lock.waiter_pid} waits for a {lock.kind} lock on {lock.path or 'a file'} held by pid {lock.holder_pid} "
        f"({lock.holder_name})" + (f"; holder: {describe_holder(lock)}" if lock.holder_command else "")
        for lock in evidence.locks
    )
    blocks = [_files_of(process) for process in evidence.processes[:_MAX_PROCESSES] if process.files]
    return locks + "".join(blocks)


def _files_of(process: ProcessFacts) -> str:
    sockets = {socket.fd: socket for socket in process.sockets}
    rows = []
    for file in process.files[:200]:
        socket = sockets.get(file.fd)
        what = f"{socket.family} {socket.local} → {socket.remote} {socket.state}" if socket else file.target
        rows.append(
            (
                str(file.fd),
                f"<bdi>{for_html(what, 400)}</bdi>",
                for_html(f"{file.kind} {file.access}"),
                "cache" if file.in_cache else "",
                "" if file.size_bytes is None else format_bytes(file.size_bytes),
                "" if file.position_bytes is None else format_bytes(file.position_bytes),
            )
        )
    heads = (("Fd", "number"), ("File", "path"), ("Kind", ""), ("Where", ""), ("Size", "number"), ("At", "number"))
    count = process.file_count if process.file_count is not None else len(rows)
    title = f"pid {process.pid} {for_html(process.name)}: {count} open"
    return f"<details><summary>{title}</summary>{_table(heads, rows)}</details>"


def _machine(evidence: Evidence) -> str:
    lines = []
    for facts in evidence.filesystems:
        space = "did not answer" if not facts.responded else facts.error
        if facts.free_bytes is not None and facts.total_bytes is not None:
            space = f"{format_bytes(facts.free_bytes)} of {format_bytes(facts.total_bytes)} free"
            if facts.total_inodes:
                space += f", {facts.free_inodes:,} of {facts.total_inodes:,} inodes free"
        lines.append(
            f"{facts.path}: {facts.type} {facts.source} on {facts.mount_point} ({','.join(facts.options)}): {space}"
        )
    for group in evidence.cgroups:
        limit = format_bytes(group.limit_bytes) if group.limit_bytes else "no limit"
        current = format_bytes(group.current_bytes) if group.current_bytes is not None else "unknown"
        kills = "unknown" if group.oom_kills is None else group.oom_kills
        lines.append(f"control group {group.path}: {current} of {limit}, OOM kills: {kills}")
    lines += [
        f"pressure {p.resource}: some {p.some_avg10:.1f} % / full {p.full_avg10:.1f} % over 10 s, "
        f"{p.some_avg60:.1f} % / {p.full_avg60:.1f} % over 60 s"
        for p in evidence.pressure
    ]
    return _items(lines)


def _stacks(evidence: Evidence) -> str:
    blocks: list[str] = []
    for process in evidence.processes[:_MAX_PROCESSES]:
        lines = []
        for python in process.python_threads:
            lines.append(f"Python thread {python.tid} {for_html(python.name)}")
            lines += [f"  {for_html(frame, 300)}" for frame in python.frames]
        for thread in process.threads[:64]:
            if thread.kernel_stack:
                lines.append(f"kernel, thread {thread.tid} {for_html(thread.name)} ({for_html(thread.state)})")
                lines += [f"  {for_html(frame, 200)}" for frame in thread.kernel_stack]
        if lines:
            is_open = " open" if process.python_threads and not blocks else ""
            text = "\n".join(lines)
            blocks.append(
                f"<details{is_open}><summary>pid {process.pid} {for_html(process.name)}</summary><pre>{text}</pre></details>"
            )
    return "".join(blocks)


def _said(diagnosis: Diagnosis) -> str:
    """The lines of the log on which the diagnosis rests."""
    lines = [line.removeprefix(_LOGGED) for line in diagnosis.evidence if line.startswith(_LOGGED)]
    text = "\n".join(for_html(line, 500) for line in lines)
    return f"<pre>{text}</pre>" if text else ""


def _log(log: str, seen: bool) -> str:
    lines = log.splitlines()[-_MAX_LOG_LINES:]
    if not lines:
        return "<p>The generator printed nothing.</p>" if seen else f"<p>{UNSEEN.capitalize()}.</p>"
    text = "\n".join(for_html(line, 2000) for line in lines)
    return f'<pre class="log" tabindex="0">{text}</pre>'


def _notes(report: Mapping[str, Any], evidence: Evidence) -> str:
    lines = [f"{missing.part}: {missing.why}" for missing in evidence.missing]
    lines += [str(cut) for cut in report.get("cut") or ()]
    lines += [str(note) for note in report.get("notes") or ()]
    return (
        f"<section><h2>What is missing or cut</h2>{_items(lines) or '<p>Nothing.</p>'}</section>"
        f"<footer>cachewatch {for_html(str(report.get('cachewatch_version') or ''))} · collected "
        f"{for_html(evidence.collected_at)} · {_SECRETS_NOTE}</footer>"
    )
