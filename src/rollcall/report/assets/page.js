// The rest of the page: details of the chosen op, logs, figures.
const make = (tag, text, attributes = {}) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text; // as text, never as HTML
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};

const details = {
  MOST: 40,
  show(op, ops) {
    const place = document.getElementById("chosen");
    place.replaceChildren();
    if (op < 0) return;
    const { start, wait, busy, kinds, kind, seconds, bytes, came } = timeline;
    const about = kinds[kind[op]], last = timeline.last(ops), first = timeline.firstOf(ops);
    const late = came(last.op) - came(first.op);
    const missing = about.ranks - ops.length;
    const heading = make("h3", `${about.op}${about.site ? ` at ${about.site}` : ""}: ${ops.length} of ${Math.max(about.ranks, ops.length)} ranks`);
    const sentence =
      missing > 0 && !["send", "recv"].includes(about.op) ? `${missing} of its group never arrived; the others still wait.`
      : ops.length < 2 ? "Nobody else takes part in this op."
      : timeline.hasTimes() ? `${timeline.name(last.lane)} was the last to arrive, ${seconds(late)} after the first.`
      : "";
    const zoom = make("button", "zoom to this call"), logs = make("button", "logs at this time");
    const end = Math.max(...ops.map(({ op }) => start[op] + wait[op] + busy[op])), margin = Math.max((end - came(first.op)) * 0.4, 2e-5);
    zoom.addEventListener("click", () => timeline.show(came(first.op) - margin, end + margin));
    logs.addEventListener("click", () => logbook.near(start[op]));
    const table = make("table"), head = make("tr"), body = make("tbody");
    for (const name of ["rank", "came", "waited", "communicated", "bytes", "tensors"]) head.append(make("th", name, { class: name === "tensors" ? "text" : ["came", "waited", "communicated"].includes(name) ? "time" : "" }));
    const thead = make("thead");
    thead.append(head);
    for (const each of [...ops].sort((a, b) => came(b.op) - came(a.op)).slice(0, details.MOST)) {
      const row = make("tr"), of = kinds[kind[each.op]];
      row.append(make("td", timeline.name(each.lane)), make("td", `+${seconds(came(each.op) - came(first.op))}`, { class: "time" }), make("td", seconds(wait[each.op]), { class: "time" }),
        make("td", seconds(busy[each.op]), { class: "time" }), make("td", bytes(of.bytes)), make("td", of.tensors ?? "", { class: "text" }));
      body.append(row);
    }
    table.append(thead, body);
    const paragraph = make("p", sentence, { class: "hint" });
    paragraph.append(" ", zoom, " ", logs);
    const scroll = make("div", undefined, { class: "scroll" });
    scroll.append(table);
    place.append(heading, paragraph, scroll);
  },
};

const logbook = {
  MOST: 1500,
  begin(lines) {
    logbook.lines = lines;
    const ranks = [...new Set(lines.map((line) => line.rank))].sort((a, b) => a - b);
    logbook.rank = document.getElementById("log-rank");
    logbook.search = document.getElementById("search");
    logbook.rank.append(make("option", "all ranks", { value: "" }));
    for (const rank of ranks) logbook.rank.append(make("option", `rank ${rank}`, { value: rank }));
    logbook.rank.addEventListener("change", () => logbook.show());
    logbook.search.addEventListener("input", () => logbook.show());
    logbook.show();
  },
  show() {
    const wanted = logbook.search.value.toLowerCase(), rank = logbook.rank.value;
    const found = logbook.lines.filter((line) => (rank === "" || String(line.rank) === rank) && (!wanted || line.text.toLowerCase().includes(wanted)));
    const place = document.getElementById("lines");
    place.replaceChildren(...found.slice(-logbook.MOST).map((line) => logbook.row(line, wanted)));
    const shown = Math.min(found.length, logbook.MOST);
    document.getElementById("log-count").textContent = `${found.length.toLocaleString("en")} lines${shown < found.length ? `, the last ${shown} shown` : ""}`;
  },
  row(line, wanted) {
    const row = make("div");
    row.line = line;
    const text = make("span");
    const at = wanted ? line.text.toLowerCase().indexOf(wanted) : -1;
    if (at < 0) text.textContent = line.text;
    else text.append(line.text.slice(0, at), make("mark", line.text.slice(at, at + wanted.length)), line.text.slice(at + wanted.length));
    row.append(make("time", line.at === null ? "" : `${line.at.toFixed(3)} s`), make("b", `rank ${line.rank}`), text);
    row.addEventListener("click", () => logbook.go(row));
    return row;
  },
  go(row) {
    document.querySelectorAll("#lines .near").forEach((each) => each.classList.remove("near"));
    row.classList.add("near");
    if (row.line.at !== null && timeline.plot) timeline.mark(row.line.at);
  },
  near(at) {
    logbook.rank.value = ""; logbook.search.value = "";
    logbook.show();
    const rows = [...document.getElementById("lines").children].filter((row) => row.line.at !== null);
    if (!rows.length) return;
    const row = rows.reduce((a, b) => (Math.abs(b.line.at - at) < Math.abs(a.line.at - at) ? b : a));
    logbook.go(row);
    timeline.mark(at);
    row.scrollIntoView({ block: "center" });
  },
};

const figures = {
  shown: new Map(),
  // Replaces the old figure when the new one is ready, so that the place is never empty.
  async put(place, item) {
    const target = document.getElementById(place);
    if (!target) return;
    const fresh = make("div");
    target.append(fresh);
    const before = figures.shown.get(place);
    if (before) fresh.style.display = "none";
    const views = await Bokeh.embed.embed_item(item, fresh);
    const doc = Bokeh.documents.at(-1);
    if (before) {
      before.views.clear();
      before.div.remove();
      Bokeh.documents.splice(Bokeh.documents.indexOf(before.doc), 1);
      fresh.style.display = "";
    }
    figures.shown.set(place, { views, doc, div: fresh });
  },
  async putAll(items) {
    for (const [place, item] of Object.entries(items)) await figures.put(place, item);
    theme.apply(document.documentElement.classList.contains("dark"));
  },
};

window.rollcall = { timeline, samples, figures, logbook, details, columns, laneName: lanes.name };

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

// First a picture of the timeline; then bokeh, with a timeline that can be moved; then the rest.
async function begin() {
  theme.begin();
  const place = document.getElementById("timeline-plot");
  await timeline.take();
  const preview = timeline.preview(place);
  await painted();
  performance.mark("painted"); // for benchmarks
  for (const text of document.querySelectorAll("script.bokeh")) document.body.append(make("script", text.textContent));
  await figures.put("timeline-plot", given("timeline-figure"));
  await timeline.begin();
  theme.apply(document.documentElement.classList.contains("dark"));
  preview?.remove();
  place.style.cssText = "";
  performance.mark("movable");
  await painted();
  await timeline.takeRest();
  await figures.putAll(given("figures-data"));
  tables.begin();
  logbook.begin(JSON.parse(new TextDecoder().decode(await columns.inflate(given("logs-data")))));
  timeline.draw(); // the browser compiles it at the second call: the first zoom need not wait for that
  rollcall.isReady = true;
}

begin();
