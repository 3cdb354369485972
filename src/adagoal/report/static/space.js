/* The goal space of a training run: where goals were chosen, and D and E, over time. */

const space = {cycle: -1, measure: "recent"};
const SQUARES = 30, WINDOW = 10;  // squares per side, and cycles that count as recent

{
  const plot = newPlot("space", "space-plot", 420, "x", "y", {tools: ZOOM});
  const squares = addGlyph(plot, "rect", newSource("squares", "x", "y", "width", "height", "fill", "text"),
    {x: "@x", y: "@y", width: "@width", height: "@height", fill_color: "@fill", line_color: null});
  addGlyph(plot, "quad", newSource("boxes", "left", "right", "bottom", "top", "edge", "name"),
    {left: "@left", right: "@right", top: "@top", bottom: "@bottom", fill_color: null, line_color: "@edge", line_width: 3});
  addHover(plot, [["at", "(@x, @y)"], ["", "@text"]], {renderers: [squares]});
}

const extent = d => [0, 1].map(k => [d.facts.boxes.train[0][k], d.facts.boxes.train[1][k]]);

/* Counts of chosen goals in squares, for the cycles from..to. */
function countGoals(d, from, to) {
  const [[x0, x1], [y0, y1]] = extent(d), B = d.shapes.chosen[1], counts = new Float64Array(SQUARES * SQUARES);
  const place = (value, low, high) => Math.min(Math.max(Math.floor((value - low) / (high - low || 1) * SQUARES), 0), SQUARES - 1);
  for (let i = from * B; i < (to + 1) * B; i++) {
    counts[place(d.chosen[2 * i], x0, x1) * SQUARES + place(d.chosen[2 * i + 1], y0, y1)] += 1;
  }
  return counts;
}

/* D or E at the time of the slider: the map of the end, or the last saved map before. */
function valueMap(d, name) {
  const cycle = space.cycle * d.facts.every, recent = d.facts.map_cycles.filter(c => c <= cycle).length - 1;
  if (d[name] && (space.cycle === d.shapes.chosen[0] - 1 || !d.maps)) return {field: d[name], shape: d.shapes[name], when: "in the end"};
  const [, , columns, rows] = d.shapes.maps, size = columns * rows, at = (2 * Math.max(recent, 0) + (name === "E")) * size;
  return {field: d.maps.subarray(at, at + size), shape: [columns, rows], when: `at the start of cycle ${whole(d.facts.map_cycles[Math.max(recent, 0)] + 1)}`};
}

/* The largest E at any time, so a colour means the same at every time. */
function largestE(d) {
  let top = d.E ? Math.max(...d.E) : 0;
  if (d.maps) {
    const size = d.shapes.maps[2] * d.shapes.maps[3];
    for (let i = 0; i < d.maps.length; i++) if (Math.floor(i / size) % 2 && d.maps[i] > top) top = d.maps[i];
  }
  return top;
}

function drawSpace() {
  const d = page.data, cycles = d.shapes.chosen[0], values = ["D", "E"].includes(space.measure);
  let [[x0, x1], [y0, y1]] = extent(d), columns = SQUARES, rows = SQUARES, field, when = "";
  if (values) {
    const map = valueMap(d, space.measure);
    ({field, when} = map);
    [columns, rows] = map.shape;
    [[x0, y0], [x1, y1]] = d.facts.ends;
  } else {
    field = countGoals(d, space.measure === "recent" ? Math.max(space.cycle - WINDOW, 0) : 0, space.cycle);
  }
  const top = space.measure === "D" ? 2 * d.facts.radius : space.measure === "E" ? largestE(d) || 1 : Math.max(...field, 1e-9);
  const width = (x1 - x0) / columns, height = (y1 - y0) / rows, cells = [...field.keys()];
  fill("squares", {
    x: cells.map(i => x0 + (Math.floor(i / rows) + 0.5) * width), y: cells.map(i => y0 + (i % rows + 0.5) * height),
    width: cells.map(() => 1.01 * width), height: cells.map(() => 1.01 * height),
    fill: cells.map(i => ramp(values ? field[i] / top : Math.sqrt(field[i] / top))),
    text: cells.map(i => values ? `${space.measure} = ${round(field[i])}` : `${field[i]} goals`),
  });
  const boxes = Object.entries(d.facts.boxes).filter(([name]) => name !== "train");
  fill("boxes", {left: boxes.map(([, b]) => b[0][0]), right: boxes.map(([, b]) => b[1][0]), bottom: boxes.map(([, b]) => b[0][1]),
    top: boxes.map(([, b]) => b[1][1]), edge: boxes.map(([name]) => name === "test" ? "#e69f00" : "#56b4e9"),
    name: boxes.map(([name]) => name)});
  const [[left, right], [low, high]] = extent(d);
  setRange(plots.space, [left, right], [low, high]);
  $("space-legend").replaceChildren("0", rampBar(), values ? `${round(top)} steps` : `${whole(top)} goals`,
    "; orange: test space" + (d.facts.boxes.table ? "; blue: table" : ""));
  $("space-text").textContent = `cycle ${whole((space.cycle + 1) * d.facts.every)} of ${whole(cycles * d.facts.every)}, `
    + `${whole((space.cycle + 1) * d.facts.every * d.facts.episodes)} episodes` + (values ? `; ${space.measure} ${when}` : "");
}

addPanel({
  show(data) {
    const end = data.shapes.chosen[0] - 1;
    if (space.cycle < 0 || space.cycle === Number($("cycle").max)) space.cycle = end;
    $("cycle").max = end;
    for (const option of $("space-measure").options) option.disabled = ["D", "E"].includes(option.value) && !data.D && !data.maps;
  },
  draw() { $("cycle").value = space.cycle; drawSpace(); },
  start() {
    $("space-measure").onchange = () => { space.measure = $("space-measure").value; drawSpace(); };
    $("cycle").oninput = () => { space.cycle = Number($("cycle").value); drawSpace(); };
    const end = () => page.data.shapes.chosen[0] - 1;
    playButton("play-space", 120, () => { if (space.cycle >= end()) space.cycle = 0; }, () => {
      if (space.cycle >= end()) return false;
      space.cycle = Math.min(space.cycle + Math.max(1, Math.ceil(end() / 60)), end());
      redraw();
    });
  },
});
