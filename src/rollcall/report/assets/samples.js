// Where ranks were seen while they were in no op.
const samples = {
  EVERY_S: 0.02, // seconds between two samples
  byRank: new Map(),

  // New samples replace old ones that began no earlier: a sample grows while its rank stays on the line.
  async take({ columns: packed, places }) {
    const [rank, start, length, place] = await Promise.all(["rank", "start", "length", "place"].map((name) => columns.read(packed[name])));
    const firsts = new Map();
    for (let i = 0; i < rank.length; i++) {
      const begin = start[i] / 1e6;
      let known = samples.byRank.get(rank[i]);
      if (!known) samples.byRank.set(rank[i], (known = []));
      if (!firsts.has(rank[i])) {
        firsts.set(rank[i], i);
        while (known.length && known.at(-1).begin > begin - 5e-7) known.pop();
      }
      known.push({ begin, end: (start[i] + length[i]) / 1e6, place: places[place[i]] });
    }
  },

  // The newest sample that began no later than this.
  before(known, at) {
    let low = 0, high = known.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (known[middle].begin <= at) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  },

  // Where the rank of a lane was at this time; "" if it was in an op, or there is no sample.
  tell(lane, at) {
    const known = samples.byRank.get(timeline.lanes[lane].rank) ?? [];
    const place = samples.before(known, at);
    const op = timeline.search(lane, at) - 1, isOp = op >= timeline.first[lane];
    if (isOp && timeline.start[op] + timeline.wait[op] + timeline.busy[op] > at) return "";
    const last = known[place], next = known[place + 1];
    if (last && at <= last.end + samples.EVERY_S && !(isOp && timeline.start[op] >= last.end)) return `was in ${last.place}`;
    const nextOp = op + 1 < timeline.first[lane + 1] ? timeline.start[op + 1] : Infinity;
    return next && next.begin <= at + samples.EVERY_S && next.begin <= nextOp ? `was in ${next.place}` : "";
  },
};
