// Runs first: the names of lanes, which bokeh needs for its first paint, and the columns that are drawn, which the browser
// unpacks in other threads.
const given = (id) => JSON.parse(document.getElementById(id).textContent);

const lanes = {
  list: given("lanes-data"),
  // The label of the first rank of a host has the host's name, too.
  name(ticks, index) {
    const lane = lanes.list[ticks[index]];
    if (!lane) return "";
    const before = lanes.list[ticks[index - 1]];
    return lane.host && before?.host !== lane.host ? `${lane.host}  ${lane.rank}` : String(lane.rank);
  },
};
window.rollcall = { laneName: lanes.name };

const packed = given("timeline-data");
const drawn = ["start", "wait", "busy"].map((name) => columns.read(packed.columns[name], 1e6));
