// Tables that are sorted by a click on a heading.
const tables = {
  begin(within = document) {
    for (const table of within.querySelectorAll("table.sortable"))
      table.querySelectorAll("th").forEach((th, column) => th.addEventListener("click", () => tables.sort(table, th, column)));
  },
  sort(table, th, column) {
    const down = th.getAttribute("aria-sort") !== "descending";
    table.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => { const raw = row.cells[column].dataset.value; return raw === undefined ? row.cells[column].textContent : Number(raw); };
    const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b));
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b)));
    table.tBodies[0].append(...rows);
  },
  // Sort a new table as the old one was sorted.
  resort(within, sorted) {
    const th = within.querySelectorAll("th")[sorted.cellIndex];
    if (sorted.getAttribute("aria-sort") === "ascending") th.setAttribute("aria-sort", "descending");
    tables.sort(th.closest("table"), th, sorted.cellIndex);
  },
};
