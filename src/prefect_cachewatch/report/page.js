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
