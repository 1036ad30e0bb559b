"""Style sheet and script of the post-mortem page: constant texts, their hashes stand in its policy."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

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
.controls input{font:inherit;color:inherit;background:var(--code);border:1px solid var(--rule);border-radius:8px;
padding:5px 10px;width:min(320px,100%)}
footer{font-size:.82rem;padding:0 4px 24px;overflow-wrap:anywhere}
@media (max-width:600px){main{padding:8px}header,section{padding:12px;border-radius:8px}
#files th:nth-child(3),#files td:nth-child(3){display:none}td.path{min-width:160px}th,td{padding:4px 6px}}
@media print{body{background:#fff;color:#000}header,section{border:0;border-bottom:1px solid #999;border-radius:0;
break-inside:auto;padding:8px 0}.scroll,pre{max-height:none;overflow:visible}pre{white-space:pre-wrap}
.controls{display:none}thead th{position:static}tr{break-inside:avoid}}
"""

SCRIPT = """
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
