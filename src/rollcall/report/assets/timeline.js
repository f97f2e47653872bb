// The timeline: a million ops are typed arrays here, and bokeh gets what is in view. Few ops are bars; of many there is an
// image, in which each lane shows which share of the time was waiting, communicating, computing.
const timeline = {
  MOST_BARS: 3000, MOST_LANES: 150, IMAGE_ROWS: 600,
  COMPUTE: "#b9c2cd", COMMUNICATE: "#0072b2", WAIT: "#e69f00",
  PHASES: ["#009e73", "#cc79a7", "#56b4e9", "#f0e442", "#d55e00", "#999999"], MOST_PHASES: 300,
  models: {}, chosenOp: -1,

  async begin() {
    const doc = Bokeh.documents.find((d) => d.get_model_by_name("timeline"));
    timeline.plot = doc.get_model_by_name("timeline");
    for (const name of ["bands", "heads", "image", "bars", "chosen", "arrow", "attempts", "moment", "deaths", "hosts"])
      timeline.models[name] = doc.get_model_by_name(name);
    timeline.NDArray = timeline.models.image.data.image[0].constructor;
    timeline.marks();
    // In the same frame, so that bokeh paints only once.
    timeline.plot.x_range.change.connect(timeline.draw);
    timeline.plot.y_range.change.connect(timeline.draw);
    timeline.plot.properties.inner_width?.change.connect(timeline.later);
    timeline.listen();
    timeline.draw();
  },

  async take() {
    const [start, wait, busy] = await Promise.all(drawn);
    Object.assign(timeline, { start, wait, busy, ...packed.meaning });
    lanes.list = timeline.lanes;
    timeline.first = Int32Array.from(packed.meaning.first);
  },
  // The whole timeline as one picture, in the place where bokeh will draw it: the first paint does not need bokeh.
  preview(place) {
    const lanes = timeline.lanes.length, LEFT = 72, RIGHT = 30;
    if (!lanes) return;
    const wide = Math.max(200, place.clientWidth - LEFT - RIGHT), high = Math.min(Math.max(lanes * 26, 130), 620);
    const view = { from: 0, to: timeline.duration, wide, high, top: 0, bottom: lanes - 1 };
    const drawn = timeline.pixels(view, (size) => new Uint32Array(size));
    const canvas = make("canvas", undefined, { width: drawn.wide, height: drawn.high, style: `position:absolute; left:${LEFT}px; width:${wide}px; height:${high}px` });
    canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(drawn.pixels.buffer), drawn.wide, drawn.high), 0, 0);
    place.style.cssText = `position: relative; min-height: ${high + 60}px`;
    place.append(canvas);
    return canvas;
  },
  // What is shown only of a chosen op; nothing is drawn from it.
  async takeRest() {
    const [unblocked, kind, call] = await Promise.all([["unblocked", 1e6], ["kind", 1], ["call", 1]].map(([name, unit]) => columns.read(packed.columns[name], unit)));
    Object.assign(timeline, { unblocked, kind, call });
    await samples.take(packed.samples);
  },

  hue(name) {
    timeline.hues ??= new Map();
    if (!timeline.hues.has(name)) timeline.hues.set(name, timeline.PHASES[timeline.hues.size % timeline.PHASES.length]);
    return timeline.hues.get(name);
  },
  // Phases in view as bands, with their names above the lanes if there is room.
  drawPhases(view) {
    const pixel = (view.to - view.from) / view.wide, top = timeline.plot.y_range.bounds?.[0] ?? -0.5;
    const inView = timeline.phases.filter((p) => p.end > view.from && p.begin < view.to);
    const wide = inView.filter((p) => p.end - p.begin > 2 * pixel);
    const sum = (phases) => phases.reduce((total, p) => total + p.end - p.begin, 0);
    // All of them or none: a few long phases among many short ones would mislead.
    const seen = sum(wide) > 0.9 * sum(inView) ? wide.slice(0, timeline.MOST_PHASES) : [];
    const left = seen.map((p) => Math.max(p.begin, view.from)), right = seen.map((p) => Math.min(p.end, view.to));
    const colour = seen.map((p) => timeline.hue(p.name)), edge = seen.map(() => -0.5);
    timeline.models.bands.data = { left, right, colour, top: edge, bottom: seen.map(() => timeline.lanes.length - 0.5) };
    const name = seen.map((p, n) => (right[n] - left[n] > (8 * p.name.length + 8) * pixel ? p.name : ""));
    timeline.models.heads.data = { left, right, colour, name, top: seen.map(() => top), bottom: seen.map(() => -0.6) };
  },
  marks() {
    const firsts = timeline.lanes.map((_, lane) => lane).filter((lane) => lane && timeline.lanes[lane].host !== timeline.lanes[lane - 1].host);
    timeline.models.hosts.data = { y: firsts.map((lane) => lane - 0.5) };
    timeline.models.attempts.data = { x: timeline.attempts.slice(1).map((a) => a.begin) };
    timeline.models.deaths.data = { x: timeline.deaths.map((d) => d.at), y: timeline.deaths.map((d) => d.lane) };
  },

  later() {
    if (timeline.waiting) return;
    timeline.waiting = true;
    requestAnimationFrame(() => ((timeline.waiting = false), timeline.draw()));
  },

  // Ops of a lane that may be in view: from the first to before the last. Ops of several threads may overlap a bit.
  span(lane, from, to) {
    const low = timeline.search(lane, from);
    return [Math.max(timeline.first[lane], low - 8), timeline.search(lane, to)];
  },
  search(lane, at) {
    let low = timeline.first[lane], high = timeline.first[lane + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (timeline.start[middle] < at) low = middle + 1;
      else high = middle;
    }
    return low;
  },

  view() {
    const { x_range, y_range, inner_width, inner_height } = timeline.plot;
    const lanes = timeline.lanes.length;
    const [a, b] = [Math.min(y_range.start, y_range.end), Math.max(y_range.start, y_range.end)];
    return {
      from: x_range.start, to: x_range.end, wide: Math.max(200, Math.round(inner_width || 1000)), high: Math.max(60, Math.round(inner_height || 400)),
      top: Math.max(0, Math.floor(a + 0.5)), bottom: Math.min(lanes - 1, Math.ceil(b - 0.5)),
    };
  },

  draw() {
    const began = performance.now();
    const view = timeline.view();
    let count = 0;
    const lanes = view.bottom - view.top + 1;
    for (let lane = view.top; lane <= view.bottom; lane++) {
      const [low, high] = timeline.span(lane, view.from, view.to);
      count += high - low;
    }
    timeline.isExact = count <= timeline.MOST_BARS && lanes <= timeline.MOST_LANES;
    if (timeline.isExact) timeline.drawBars(view);
    else timeline.drawImage(view);
    if (timeline.chosenOp >= 0) timeline.drawChosen();
    if (timeline.phases.length) timeline.drawPhases(view);
    timeline.drawnMs = performance.now() - began;
    timeline.draws = (timeline.draws ?? 0) + 1;
  },

  drawBars(view) {
    const out = { left: [], right: [], top: [], bottom: [], colour: [] };
    const least = (view.to - view.from) / view.wide;
    const put = (lane, left, right, colour, half) => {
      if (right < view.from || left > view.to) return;
      out.left.push(Math.max(left, view.from)); out.right.push(Math.min(Math.max(right, left + least), view.to));
      out.top.push(lane - half); out.bottom.push(lane + half); out.colour.push(colour);
    };
    for (let lane = view.top; lane <= view.bottom; lane++) {
      for (const [begin, end] of timeline.lanes[lane].alive) put(lane, begin, end, timeline.COMPUTE, 0.32);
      const [low, high] = timeline.span(lane, view.from, view.to);
      for (let i = low; i < high; i++) {
        const turn = timeline.start[i] + timeline.wait[i];
        if (timeline.wait[i] > 0) put(lane, timeline.start[i], turn, timeline.WAIT, 0.36);
        if (timeline.busy[i] > 0 || timeline.wait[i] === 0) put(lane, turn, turn + timeline.busy[i], timeline.COMMUNICATE, 0.36);
      }
    }
    timeline.models.bars.data = out;
    if (timeline.models.image.data.dw[0])
      timeline.models.image.data = { image: [new timeline.NDArray(1, [1, 1])], x: [0], y: [0], dw: [0], dh: [0] };
  },

  drawImage(view) {
    const { pixels, groups, perRow } = timeline.pixels(view, (size, shape) => new timeline.NDArray(size, shape));
    if (timeline.models.bars.data.left.length)
      timeline.models.bars.data = { left: [], right: [], top: [], bottom: [], colour: [] };
    timeline.models.image.data = {
      image: [pixels], x: [view.from], y: [view.top - 0.5], dw: [view.to - view.from], dh: [groups * perRow],
    };
  },
  pixels(view, array) {
    const lanes = view.bottom - view.top + 1;
    const perRow = Math.max(1, Math.ceil(lanes / Math.min(timeline.IMAGE_ROWS, view.high)));
    const groups = Math.ceil(lanes / perRow);
    const tall = Math.max(1, Math.min(16, Math.floor(view.high / groups)));
    const gap = tall >= 8 ? 2 : tall >= 4 ? 1 : 0;
    const wide = Math.min(view.wide, 1600), high = groups * tall;
    const pixels = array(wide * high, [high, wide]);
    const wait = new Float32Array(wide), busy = new Float32Array(wide), alive = new Float32Array(wide);
    for (let group = 0; group < groups; group++) {
      wait.fill(0); busy.fill(0); alive.fill(0);
      const lane = view.top + group * perRow, last = Math.min(view.bottom, lane + perRow - 1);
      for (let each = lane; each <= last; each++) timeline.sum(each, view, wide, wait, busy, alive);
      timeline.paint(pixels, group * tall, tall, gap, wide, wait, busy, alive, last - lane + 1);
    }
    return { pixels, groups, perRow, wide, high };
  },

  // Adds up for each column which share of its time a lane was waiting, communicating, alive.
  sum(lane, view, wide, wait, busy, alive) {
    const scale = wide / (view.to - view.from);
    const add = (into, left, right) => {
      let a = (left - view.from) * scale, b = (right - view.from) * scale;
      if (b <= 0 || a >= wide) return;
      a = Math.max(a, 0); b = Math.min(b, wide);
      const first = Math.floor(a), last = Math.min(Math.floor(b), wide - 1);
      if (first === last) { into[first] += b - a; return; }
      into[first] += first + 1 - a;
      for (let column = first + 1; column < last; column++) into[column] += 1;
      into[last] += b - last;
    };
    for (const [begin, end] of timeline.lanes[lane].alive) add(alive, begin, end);
    const [low, high] = timeline.span(lane, view.from, view.to);
    for (let i = low; i < high; i++) {
      const start = timeline.start[i], turn = start + timeline.wait[i];
      if (timeline.wait[i] > 0) add(wait, start, turn);
      if (timeline.busy[i] > 0) add(busy, turn, turn + timeline.busy[i]);
    }
  },

  // Row by row: waiting above, then communicating, then computing. Lanes of one row: their colours, mixed.
  paint(pixels, row, tall, gap, wide, wait, busy, alive, lanes) {
    const solid = (r, g, b) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    const COMPUTE = solid(0xb9, 0xc2, 0xcd), COMMUNICATE = solid(0x00, 0x72, 0xb2), WAIT = solid(0xe6, 0x9f, 0x00);
    const room = tall - gap;
    for (let x = 0; x < wide; x++) {
      const there = Math.max(alive[x], wait[x] + busy[x]) / lanes;
      if (there < 0.01) continue;
      const w = Math.min(wait[x] / lanes, 1), b = Math.min(busy[x] / lanes, 1 - w);
      if (room < 3) {
        const c = Math.max(there - w - b, 0), all = w + b + c;
        const mix = (i, j, k) => Math.round((w * i + b * j + c * k) / all);
        const colour = solid(mix(0xe6, 0, 0xb9), mix(0x9f, 0x72, 0xc2), mix(0, 0xb2, 0xcd));
        for (let y = 0; y < room; y++) pixels[(row + y) * wide + x] = colour;
        continue;
      }
      const waits = Math.round(w * room), works = Math.round((w + b) * room);
      for (let y = 0; y < room; y++)
        pixels[(row + y + (gap >> 1)) * wide + x] = y < waits ? WAIT : y < works ? COMMUNICATE : COMPUTE;
    }
  },

  // Hover and click.

  at(x, y) {
    const lane = Math.round(y);
    if (lane < 0 || lane >= timeline.lanes.length) return { lane: -1, op: -1 };
    const view = timeline.view(), near = (3 * (view.to - view.from)) / view.wide;
    const next = timeline.search(lane, x);
    let best = -1, distance = near;
    for (let i = Math.max(timeline.first[lane], next - 8); i < Math.min(next + 1, timeline.first[lane + 1]); i++) {
      const end = timeline.start[i] + timeline.wait[i] + timeline.busy[i];
      const away = x < timeline.start[i] ? timeline.start[i] - x : x > end ? x - end : 0;
      if (away <= distance) (best = i), (distance = away);
    }
    return { lane, op: best };
  },

  seconds(value) {
    const size = Math.abs(value);
    if (size >= 1) return `${value.toFixed(3)} s`;
    return size >= 1e-3 ? `${(value * 1e3).toFixed(2)} ms` : `${(value * 1e6).toFixed(0)} µs`;
  },
  bytes(value) {
    for (const [unit, factor] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= factor) return `${(value / factor).toFixed(2)} ${unit}`;
    return `${value} B`;
  },
  hasTimes() { return !document.body.classList.contains("rehearsed"); }, // those of a rehearsal mean nothing
  name(lane) { const { rank, host } = timeline.lanes[lane]; return host ? `rank ${rank} on ${host}` : `rank ${rank}`; },

  tell(lane, op) {
    const kind = timeline.kinds[timeline.kind[op]];
    const wait = timeline.wait[op], busy = timeline.busy[op];
    const lines = [`${kind.op} · ${timeline.name(lane)}`];
    if (kind.site) lines.push(`${kind.site} in ${kind.function}`);
    if (kind.tensors || kind.bytes) lines.push([kind.tensors, kind.bytes ? timeline.bytes(kind.bytes) : ""].filter(Boolean).join(", "));
    const more = [kind.reduce, kind.peer !== undefined ? `peer ${kind.peer}` : "", kind.async ? "async" : "", kind.failed ? "failed" : "", kind.ddp ? "by DDP" : "", `group ${kind.group}`];
    lines.push(more.filter(Boolean).join(" · "));
    if (timeline.hasTimes()) lines.push(`at ${timeline.seconds(timeline.start[op])}: waited ${timeline.seconds(wait)}, communicated ${timeline.seconds(busy)}`);
    return lines.join("\n");
  },

  tellMoment(lane, x) {
    const view = timeline.view(), width = (view.to - view.from) / view.wide;
    const [low, high] = [timeline.search(lane, x - 2 * width), timeline.search(lane, x + 2 * width)];
    const near = timeline.deaths.find((d) => d.lane === lane && Math.abs(d.at - x) < 6 * width);
    if (near) return `${timeline.name(lane)} ${near.how}`;
    const lines = [`${timeline.name(lane)}${timeline.hasTimes() ? ` · ${timeline.seconds(x)}` : ""}`, samples.tell(lane, x)];
    if (high - low > 1) lines.push(`${high - low} ops here: zoom in to see each`);
    return lines.filter(Boolean).join("\n");
  },

  ofCall(call) {
    const found = [];
    for (let lane = 0; lane < timeline.lanes.length; lane++)
      for (let i = timeline.first[lane]; i < timeline.first[lane + 1]; i++) if (timeline.call[i] === call) found.push({ lane, op: i });
    return found;
  },

  // When its rank arrived at the call: an async op blocks its rank only later.
  came(op) { return timeline.start[op] - timeline.unblocked[op]; },
  isWide(op) {
    const view = timeline.view();
    return timeline.wait[op] + timeline.busy[op] > (3 * (view.to - view.from)) / view.wide;
  },

  choose(op) {
    timeline.chosenOp = op;
    timeline.ofChosen = op < 0 ? [] : timeline.ofCall(timeline.call[op]);
    timeline.drawChosen();
    details.show(op, timeline.ofChosen);
  },

  last(ops) { return ops.reduce((a, b) => (timeline.came(b.op) > timeline.came(a.op) ? b : a)); },

  drawChosen() {
    const { chosen, arrow } = timeline.models;
    const ops = timeline.ofChosen ?? [];
    const view = timeline.view(), least = (4 * (view.to - view.from)) / view.wide;
    chosen.data = {
      left: ops.map(({ op }) => timeline.start[op]),
      right: ops.map(({ op }) => timeline.start[op] + Math.max(timeline.wait[op] + timeline.busy[op], least)),
      top: ops.map(({ lane }) => lane - 0.44), bottom: ops.map(({ lane }) => lane + 0.44),
    };
    const none = { x_start: [], y_start: [], x_end: [], y_end: [] };
    if (ops.length < 2) { arrow.data = none; return; }
    const last = timeline.last(ops), mine = ops.find(({ op }) => op === timeline.chosenOp);
    const from = mine.op === last.op ? timeline.firstOf(ops) : mine;
    arrow.data = from.op === last.op ? none : {
      x_start: [timeline.start[from.op]], y_start: [from.lane], x_end: [timeline.came(last.op)], y_end: [last.lane],
    };
  },
  firstOf(ops) { return ops.reduce((a, b) => (timeline.came(b.op) < timeline.came(a.op) ? b : a)); },

  listen() {
    const tip = document.getElementById("tip");
    timeline.onMove = ({ x, y, sx, sy }) => {
      const { lane, op } = timeline.at(x, y);
      if (lane < 0) { tip.style.display = "none"; return; }
      tip.textContent = op >= 0 && timeline.kind && (timeline.isExact || timeline.isWide(op)) ? timeline.tell(lane, op) : timeline.tellMoment(lane, x);
      tip.style.display = "block";
      const box = timeline.box();
      const left = box.left + sx + 16, top = box.top + sy + 16;
      tip.style.left = `${Math.min(left, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${top + tip.offsetHeight > innerHeight ? top - tip.offsetHeight - 32 : top}px`;
    };
    timeline.onLeave = () => (tip.style.display = "none");
    timeline.onTap = ({ x, y }) => (timeline.onLeave(), timeline.call && timeline.choose(timeline.at(x, y).op));
    document.getElementById("zoom-in").addEventListener("click", () => timeline.zoom(0.5));
    document.getElementById("zoom-out").addEventListener("click", () => timeline.zoom(2));
    document.getElementById("zoom-all").addEventListener("click", () => timeline.show(0, timeline.duration));
  },
  box() { return Bokeh.index.find_one(timeline.plot).el.getBoundingClientRect(); },
  zoom(factor) {
    const { start, end } = timeline.plot.x_range, middle = (start + end) / 2, half = ((end - start) / 2) * factor;
    timeline.show(middle - half, middle + half);
  },
  show(from, to) {
    timeline.plot.x_range.setv({ start: Math.max(0, from), end: Math.min(timeline.duration, to) });
  },
  mark(at) { timeline.models.moment.data = { x: at === null ? [] : [at] }; },
};
