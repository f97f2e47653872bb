
// A live page asks the server for new ops while it is visible, and adds them to the timeline; less often it asks for the
// verdict. The server says when to ask again: the more an answer costs, the later.
const live = {
  WINDOW_S: 20, MOST_OPS: 400000, MOST_FAILED: 5, follows: true, end: 0, attempt: -1, version: 0, failed: 0, html: {},

  begin() {
    live.end = timeline.duration;
    const button = make("button", "follow");
    button.addEventListener("click", () => (live.follows = !live.follows, live.mark(button)));
    document.querySelector("#timeline .zoom").prepend(button);
    live.mark(button);
    live.table();
    live.note = make("p", "", { id: "live-note", class: "hint" });
    document.querySelector("main").prepend(live.note);
    addEventListener("visibilitychange", () => (live.ask(), live.askWhy()));
    live.ask();
    live.askWhy();
  },
  mark(button) { button.style.borderColor = live.follows ? "var(--chosen)" : ""; },

  table() {
    const section = make("section", undefined, { id: "now" });
    section.append(make("h2", "Now"));
    const scroll = make("div", undefined, { class: "scroll" });
    live.body = make("tbody");
    const table = make("table"), head = make("thead"), row = make("tr");
    for (const name of ["rank", "state", "op", "for", "waits for", "holds up", "ops/s", "MB/s", "CPU", "memory"])
      row.append(make("th", name, ["state", "op"].includes(name) ? { class: "text" } : {}));
    head.append(row);
    table.append(head, live.body);
    scroll.append(table);
    section.append(scroll, live.stacks());
    document.getElementById("timeline").before(section);
  },

  // Asks the run's launcher where every rank is, when clicked and not before.
  stacks() {
    const box = make("p"), button = make("button", "stacks"), text = make("pre", "", { id: "stacks" });
    button.addEventListener("click", async () => {
      button.disabled = true;
      text.hidden = false;
      text.textContent = "asking the ranks…";
      try { text.textContent = (await live.get("stacks", {})).text; } catch { text.textContent = "no answer"; }
      button.disabled = false;
    });
    text.hidden = true;
    box.append(button);
    const whole = make("div");
    whole.append(box, text);
    return whole;
  },

  async get(path, query) {
    const token = new URLSearchParams(location.search).get("token");
    const answer = await fetch(`/${path}?${new URLSearchParams({ token, ...query })}`);
    if (!answer.ok) throw new Error(answer.status);
    return answer.json();
  },

  // One request at a time, and none while the page is hidden: a browser that sleeps is not behind when it wakes.
  async ask() {
    clearTimeout(live.timer);
    if (document.hidden || live.isAsking || live.isOver) return;
    live.isAsking = true;
    let again = 2;
    try {
      const news = await live.get("news", { since: live.end });
      again = news.again;
      await live.take(news);
      if (live.failed) live.tell("");
      live.failed = 0;
    } catch {
      live.failed += 1; // the server or the tunnel is gone: try again, less and less often
      live.tell("rollcall watch does not answer any more: what is here stays as it was.");
      again = 2 ** Math.min(live.failed, live.MOST_FAILED);
    }
    live.isAsking = false;
    if (live.isOver) await live.askWhy();
    else live.timer = setTimeout(live.ask, again * 1000);
  },
  tell(text) { live.note.textContent = text; },

  async askWhy() {
    clearTimeout(live.whyTimer);
    if (document.hidden || live.isAskingWhy || live.isDone) return;
    live.isAskingWhy = true;
    const isLast = live.isOver;
    let again = 5;
    try {
      const why = await live.get("explained", { seen: live.version });
      again = why.again;
      if (why.parts) await live.judge(why);
      if (isLast) live.finish(why);
    } catch {
      again = 30;
    }
    live.isAskingWhy = false;
    if (!live.isDone) live.whyTimer = setTimeout(live.askWhy, (live.isOver ? 0.1 : again) * 1000);
  },
  // Sections come as HTML from the server, which has escaped them. What the reader has opened or sorted stays so.
  async judge({ version, parts }) {
    live.version = version;
    for (const [id, html] of Object.entries(parts.sections)) {
      if (live.html[id] === html) continue;
      live.html[id] = html;
      const old = document.getElementById(id), fresh = document.createRange().createContextualFragment(html).firstChild;
      const isOpen = old.querySelector("details")?.open, sorted = old.querySelector("th[aria-sort]");
      const sizes = old.querySelector("#sizes-plot");
      if (sizes) fresh.querySelector("#sizes-plot")?.replaceWith(sizes);
      old.replaceWith(fresh);
      if (isOpen && fresh.querySelector("details")) fresh.querySelector("details").open = true;
      tables.begin(fresh);
      if (sorted) tables.resort(fresh, sorted);
    }
    await figures.putAll(parts.figures);
    const at = new Date().toLocaleTimeString("en-GB");
    for (const name of ["verdict", "waits", "traffic"]) document.querySelector(`#${name} > h2`).dataset.at = `as of ${at}`;
    live.judged = (live.judged ?? 0) + 1;
  },
  finish({ outcome }) {
    live.isDone = true;
    live.pill(outcome);
    live.tell(`The run is over: ${outcome}. What is here does not change any more.`);
    document.title = `${outcome}: ${document.title}`;
  },
  pill(outcome) {
    const pill = document.querySelector(".pill");
    pill.textContent = outcome;
    pill.className = `pill ${outcome}`;
  },

  async take(news) {
    live.show(news.ranks);
    if (news.attempt !== live.attempt && live.attempt >= 0) { location.reload(); return; }
    live.attempt = news.attempt;
    const fresh = news.scene;
    if (fresh.columns.start.length) {
      await live.add(fresh, news.from);
      live.end = Math.max(live.end, fresh.meaning.duration);
      timeline.duration = live.end;
      timeline.plot.x_range.bounds = [0, live.end];
      if (live.follows) timeline.plot.x_range.setv({ start: Math.max(0, live.end - live.WINDOW_S), end: live.end });
      else timeline.draw();
    }
    live.takes = (live.takes ?? 0) + 1;
    if (news.over !== null) live.isOver = true;
  },

  show(ranks) {
    live.body.replaceChildren(...ranks.map((each) => {
      const row = make("tr");
      const megabytes = each.memory === null ? "" : `${Math.round(each.memory / 1e6)} MB`;
      row.append(make("td", `${each.rank}${each.host ? ` on ${each.host}` : ""}`), make("td", each.state, { class: "text" }), make("td", each.op, { class: "text" }),
        make("td", timeline.seconds(each.seconds)), make("td", each.waits_for.join(", ")), make("td", each.holds_up || ""),
        make("td", each.ops_per_s.toFixed(0)), make("td", each.mb_per_s.toFixed(1)), make("td", each.cpu === null ? "" : `${each.cpu.toFixed(0)} %`), make("td", megabytes));
      if (each.holds_up) row.style.fontWeight = "700";
      return row;
    }));
  },

  // Lane by lane: the old ops before `from`, then the new ones. The oldest are dropped when there are too many.
  async add(fresh, from) {
    const NAMES = ["start", "unblocked", "wait", "busy", "kind", "call"];
    const arrived = Object.fromEntries(await Promise.all(NAMES.map(async (name) => [name, await columns.read(fresh.columns[name])])));
    for (const name of NAMES.slice(0, 4)) arrived[name] = arrived[name].map((value) => value / 1e6);
    const kinds = live.kindsOf(fresh.meaning.kinds), calls = timeline.call.reduce((a, b) => Math.max(a, b), -1) + 1;
    arrived.kind = arrived.kind.map((kind) => kinds[kind]);
    arrived.call = arrived.call.map((call) => call + calls);
    const oldest = timeline.start.length > live.MOST_OPS ? from - 3 * live.WINDOW_S : -Infinity;
    const byRank = new Map(timeline.lanes.map((lane, place) => [lane.rank, { lane, old: place, now: -1 }]));
    fresh.meaning.lanes.forEach((lane, place) => {
      const known = byRank.get(lane.rank);
      if (known) (known.now = place), (known.lane = { ...lane, alive: live.longer(known.lane.alive, lane.alive) });
      else byRank.set(lane.rank, { lane, old: -1, now: place });
    });
    const all = [...byRank.values()].sort((a, b) => a.lane.rank - b.lane.rank);
    const parts = Object.fromEntries(NAMES.map((name) => [name, []]));
    const first = [0];
    for (const { old, now } of all) {
      let count = 0;
      const put = (source, low, high) => { for (const name of NAMES) parts[name].push(source[name].subarray(low, high)); count += high - low; };
      if (old >= 0) put(timeline, oldest > 0 ? timeline.search(old, oldest) : timeline.first[old], now >= 0 ? timeline.search(old, from) : timeline.first[old + 1]);
      if (now >= 0) {
        let low = fresh.meaning.first[now];
        for (; old >= 0 && low < fresh.meaning.first[now + 1] && arrived.start[low] < from; low++) live.update(old, arrived, low);
        put(arrived, low, fresh.meaning.first[now + 1]);
      }
      first.push(first.at(-1) + count);
    }
    for (const name of NAMES) timeline[name] = live.joined(parts[name], first.at(-1));
    timeline.first = Int32Array.from(first);
    lanes.list = timeline.lanes = all.map(({ lane }) => lane);
    timeline.phases = [...timeline.phases.filter((phase) => phase.begin < from), ...fresh.meaning.phases.filter((phase) => phase.begin >= from)];
    await samples.take(fresh.samples);
    timeline.choose(-1);
    timeline.marks();
  },
  // An op that was open before: its end has moved.
  update(lane, arrived, place) {
    const op = timeline.search(lane, arrived.start[place] - 5e-7);
    if (op < timeline.first[lane + 1] && Math.abs(timeline.start[op] - arrived.start[place]) < 1e-6)
      (timeline.wait[op] = arrived.wait[place]), (timeline.busy[op] = arrived.busy[place]);
  },
  joined(parts, length) {
    const whole = new Float64Array(length);
    let at = 0;
    for (const part of parts) whole.set(part, at), (at += part.length);
    return whole;
  },
  longer(before, after) {
    if (!before.length || !after.length) return before.length ? before : after;
    return [...before.slice(0, -1), [before.at(-1)[0], Math.max(before.at(-1)[1], after.at(-1)[1])]];
  },
  kindsOf(kinds) {
    live.known ??= new Map(timeline.kinds.map((kind, number) => [JSON.stringify(kind), number]));
    return kinds.map((kind) => {
      const key = JSON.stringify(kind);
      if (!live.known.has(key)) live.known.set(key, timeline.kinds.push(kind) - 1);
      return live.known.get(key);
    });
  },
};
rollcall.live = live;
const whenReady = () => (rollcall.isReady ? live.begin() : setTimeout(whenReady, 20));
whenReady();
