// The names of lanes, which bokeh asks for at its first paint: before there is anything on them.
const lanes = {
  list: JSON.parse(document.getElementById("lanes-data").textContent),
  // The host stands with the first of its ranks that has a label.
  name(ticks, index) {
    const lane = lanes.list[ticks[index]];
    if (!lane) return "";
    const before = lanes.list[ticks[index - 1]];
    return lane.host && before?.host !== lane.host ? `${lane.host}  ${lane.rank}` : String(lane.rank);
  },
};
window.rollcall = { laneName: lanes.name };
