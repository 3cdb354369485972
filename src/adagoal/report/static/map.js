/* The map of an exploration: places, their colours, the slider of time, and the arrow keys. */

let measure = "lower";

const mapPlot = newPlot("map", "map-plot", 460, "", "", {tools: ZOOM, lod_threshold: null});
mapPlot.axis.visible = false;
mapPlot.grid.visible = false;
addGlyph(mapPlot, "rect", newSource("walls", "x", "y"),
  {x: "@x", y: "@y", width: 1, height: 1, fill_color: "#3d434b", line_color: null});
addGlyph(mapPlot, "segment", newSource("edges", "x0", "y0", "x1", "y1"),
  {x0: "@x0", y0: "@y0", x1: "@x1", y1: "@y1", line_color: GREY, line_alpha: 0.35});
{
  const places = newSource("places", "x", "y", "fill", "edge", "thick", "name", "text");
  const style = {x: "@x", y: "@y", fill_color: "@fill", line_color: "@edge", line_width: "@thick", nonselection_alpha: 1,
    selection_fill_color: "@fill", selection_line_color: "@edge", nonselection_line_color: "@edge", nonselection_fill_color: "@fill"};
  const shapes = [addGlyph(mapPlot, "rect", places, {...style, width: 0.94, height: 0.94, name: "cells"}),
    addGlyph(mapPlot, "scatter", places, {...style, size: 13, name: "nodes"})];
  addHover(mapPlot, [["goal", "@name"], ["", "@text"]], {renderers: shapes});
  mapPlot.add_tools(new Bokeh.TapTool({renderers: shapes}));
  const arrows = newSource("arrows", "x0", "y0", "x1", "y1", "angle"), ends = {x0: "@x0", y0: "@y0", x1: "@x1", y1: "@y1"};
  addGlyph(mapPlot, "segment", arrows, {...ends, line_color: "#ffffff", line_width: 4.5, line_alpha: 0.8});
  addGlyph(mapPlot, "segment", arrows, {...ends, line_color: "#111111", line_width: 1.8});
  addGlyph(mapPlot, "scatter", arrows, {x: "@x1", y: "@y1", size: 9, marker: "triangle", angle: "@angle", fill_color: "#111111",
    line_color: "#ffffff"});
  addGlyph(mapPlot, "scatter", newSource("resets", "x", "y"),
    {x: "@x", y: "@y", size: 8, marker: "x", line_color: "#111111", line_width: 2});
  const path = newSource("path", "x", "y");
  addGlyph(mapPlot, "line", path, {x: "@x", y: "@y", line_color: "#ffffff", line_width: 6, line_alpha: 0.7});
  addGlyph(mapPlot, "line", path, {x: "@x", y: "@y", line_color: ORANGE, line_width: 3});
  addGlyph(mapPlot, "scatter", newSource("marks", "x", "y", "marker", "size", "fill"),
    {x: "@x", y: "@y", marker: "@marker", size: "@size", fill_color: "@fill", line_color: "#111111", line_width: 1.5});
  const cells = newSource("cell-words", "x", "y", "text"), word = {x: "@x", y: "@y", text: "@text", text_align: "center"};
  addGlyph(mapPlot, "rect", cells, {x: "@x", y: "@y", width: 0.94, height: 0.26, fill_color: "#111111", fill_alpha: 0.75, line_color: null});
  addGlyph(mapPlot, "text", cells, {...word, text_color: "#ffffff", text_baseline: "middle", name: "cell-text"});
  addGlyph(mapPlot, "text", newSource("node-words", "x", "y", "text"),
    {...word, text_font_size: "11px", text_baseline: "bottom", y_offset: -10, name: "node-text"});
}

/* The value of a place: the sum over its states, or the value of the best goal. */
function valueOf(place) {
  const d = page.data;
  if (measure === "visits") return place.states.reduce((sum, s) => sum + d.visits[s], 0);
  const goals = place.states.flatMap(s => page.goalsAt[s]).map(g => at(g, page.moment));
  if (measure === "choices") return goals.reduce((sum, k) => sum + k.chosen, 0);
  const known = goals.filter(k => k.stand !== UNSEEN);
  if (!known.length) return NaN;
  const best = known.reduce((a, b) => d.facts.measure.sign * (b.lower - a.lower) < 0 ? b : a);
  if (measure === "stand") return best.stand;
  if (best.stand === BEYOND) return -1;
  return measure === "width" ? best.upper - best.lower : best[measure];
}

function colours(values, tint) {
  const d = page.data, top = Math.max(...values.filter(Number.isFinite), 0);
  const ways = {
    lower: v => v / d.facts.measure.top, upper: v => v / d.facts.measure.top,
    width: v => v / Math.max(top, 1e-9), visits: v => Math.log1p(v) / Math.log1p(Math.max(top, 1)),
    choices: v => Math.sqrt(v / Math.max(top, 1)),
  };
  const stands = [tint.unseen, tint.orange, tint.blue, tint.beyond];
  const counted = measure === "visits" || measure === "choices";
  const fills = values.map(v => {
    if (measure === "stand") return stands[Number.isNaN(v) ? UNSEEN : v];
    if (counted) return v > 0 ? ramp(ways[measure](v)) : tint.unseen;
    return Number.isNaN(v) || v === Infinity ? tint.unseen : v < 0 ? tint.beyond : ramp(ways[measure](v));
  });
  legend(top, stands, tint);
  return fills;
}

function legend(top, stands, tint) {
  const d = page.data, box = $("legend");
  if (measure === "stand") { box.replaceChildren(...STANDS.map((text, i) => swatch(stands[i], text))); return; }
  const counted = measure === "visits" || measure === "choices";
  const high = counted ? whole(top) : measure === "width" ? round(top) : round(d.facts.measure.top, 1);
  box.replaceChildren("0", rampBar(), high + (counted ? "" : d.facts.measure.unit),
    ...(counted ? [] : [swatch(tint.beyond, "beyond"), swatch(tint.unseen, "no bound yet")]),
    ...(fine() ? [] : [swatch(`linear-gradient(to right, ${tint.orange} 30%, transparent 30%)`, "orange edge: open")]));
}

/* Whether the cells are so small that edges would hide them. */
const fine = () => page.data.facts.grid && Math.max(...page.data.facts.shape) > 40;

function drawMap() {
  const d = page.data, tint = Object.fromEntries(["unseen", "beyond", "orange", "blue", "ink", "line"].map(name => [name, pageColour(name)])), values = page.places.map(valueOf), fills = colours(values, tint);
  const still = page.places.map(p => p.goal >= 0 && at(p.goal, page.moment).stand === OPEN);
  const chosen = new Set(page.goal >= 0 ? [...targets(page.goal)].map(s => page.at[s]) : []);
  fill("places", {
    x: page.places.map(p => p.x), y: page.places.map(p => p.y), fill: fills,
    edge: page.places.map((_, i) => chosen.has(i) ? tint.ink : still[i] ? tint.orange : tint.line),
    thick: page.places.map((_, i) => chosen.has(i) ? 4 : fine() ? 0 : still[i] ? 2.5 : 0.7),
    name: page.places.map(p => p.states.map(label).slice(0, 4).join("; ") + (p.states.length > 4 ? "; ..." : "")),
    text: page.places.map(p => p.goal >= 0 ? interval(at(p.goal, page.moment)) : "no goal of this run"),
  });
}

function interval(k) {
  return k.stand === UNSEEN ? "never seen" : `${round(k.lower)} to ${round(k.upper)}${page.data.facts.measure.unit}, ${STANDS[k.stand]}`;
}

/* The moment in time, in words. */
function drawMoment() {
  const d = page.data, f = page.moment, counts = [0, 0, 0, 0];
  for (let g = 0; g < d.goal.length; g++) counts[at(g, f).stand] += 1;
  $("moment-text").textContent = `after ${plural(d.moment_steps[f], "step")}, ${plural(d.moment_episodes[f], "episode")}: `
    + `${counts[DONE]} finished, ${counts[OPEN]} open, ${counts[BEYOND]} beyond, ${counts[UNSEEN]} not seen yet`;
  $("moment-note").textContent = measure === "visits" && f !== last() ? "Visits are those of the end." : "";
  // Above the map stands the result of the run, or what was known at this moment.
  $("words").querySelector(".stack > section").hidden = f !== last();
  $("then").hidden = f === last();
  $("then-title").textContent = `After ${plural(d.moment_steps[f], "step")}, in the middle of the run`;
  const others = [[BEYOND, "seemed beyond the radius"], [UNSEEN, "had not been seen yet"]].filter(([stand]) => counts[stand]);
  $("then-text").textContent = [`The run had ${plural(counts[DONE], "finished goal")} and ${counts[OPEN]} open`,
    ...others.map(([stand, words]) => `${counts[stand]} ${words}`)].join(", ") + ".";
  $("moment").setAttribute("aria-valuetext", $("moment-text").textContent);
  $("moment").max = last();
  $("moment").value = f;
}

/* The start, the states of the chosen goal, and the agent while it plays. */
function drawMarks() {
  const d = page.data, marks = {x: [], y: [], marker: [], size: [], fill: []};
  const add = (s, marker, size, colour) => {
    const [x, y] = point(s);
    if (Number.isNaN(x)) return;
    marks.x.push(x); marks.y.push(y); marks.marker.push(marker); marks.size.push(size); marks.fill.push(colour);
  };
  if (d.facts.start !== null) add(d.facts.start, "star", 18, "#ffffff");
  if (page.goal >= 0) for (const s of targets(page.goal)) add(s, "diamond", 15, "#e69f00");
  if (page.agent !== null) add(page.agent, "circle", 15, GREEN);
  fill("marks", marks);
}

/* Names on the map: those that the environment gives to cells and, in a graph with room for them, those of the states. */
function drawWords() {
  const d = page.data, grid = d.facts.grid, [rows, columns] = d.facts.shape;
  const width = ($("map-plot").clientWidth || 600) / columns, cell = Math.min(width, mapPlot.height / rows);
  const marks = d.facts.marks, size = Math.round(Math.min(cell / 4, 14));
  fill("cell-words", {x: marks.map(([x]) => x), y: marks.map(([, y]) => -y - 0.34), text: marks.map(mark => size < 7 ? "" : mark[2])});
  part("cell-text").glyph.text_font_size = `${size}px`;
  // A letter is about 6 pixels wide. Labels that would be cut to a few letters, or would overlap, are left out.
  const letters = Math.floor(width / 6) - 1, shown = !grid && letters >= 4 && highestLayer() * 30 < mapPlot.height ? page.places : [];
  const cut = text => text.length > letters ? text.slice(0, letters - 1) + "…" : text;
  fill("node-words", {x: shown.map(p => p.x), y: shown.map(p => p.y), text: shown.map(p => cut(label(p.states[0])))});
  part("node-text").glyph.text_color = {value: pageColour("ink")};
}

/* The largest number of nodes above one another. */
function highestLayer() {
  const counts = {};
  for (const place of page.places) counts[place.x] = (counts[place.x] || 0) + 1;
  return Math.max(...Object.values(counts), 1);
}

function frameMap() {
  const d = page.data, [rows, columns] = d.facts.shape, grid = d.facts.grid;
  part("cells").visible = grid;
  part("nodes").visible = !grid;
  const [left, right, low, high] = grid ? [-0.6, columns - 0.4, -rows + 0.4, 0.6] : [-0.5, columns - 0.5, -1.05, 0.05];
  setRange(mapPlot, [left, right], [low, high]);
  const width = $("map").clientWidth || 600;
  mapPlot.height = grid ? Math.round(Math.min(Math.max(width * rows / columns, 180), 620)) + 30
    : Math.min(80 + 50 * highestLayer(), 480);
  if (grid && width * rows / columns > 620) mapPlot.width_policy = "fixed", mapPlot.width = Math.round(620 * columns / rows);
}

/* Arrow keys: the nearest goal in that direction. */
function move(event) {
  const ways = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]}, way = ways[event.key];
  if (!way) return;
  event.preventDefault();
  const here = page.goal >= 0 ? page.places[page.at[targets(page.goal)[0]]] : null;
  let best = -1, least = Infinity;
  for (const place of page.places) {
    if (place.goal < 0 || place === here) continue;
    const dx = here ? place.x - here.x : 0, dy = here ? place.y - here.y : 0, ahead = dx * way[0] + dy * way[1];
    const aside = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    if (here && !(ahead > 0)) continue;
    if (ahead + 3 * aside < least) { least = ahead + 3 * aside; best = place.goal; }
  }
  choose(best);
}

addPanel({
  show(d) {
    frameMap();
    const edges = [...Array(d.shapes.edges[0]).keys()], walls = [...Array(d.shapes.walls[0]).keys()], end = i => 2 * d.edges[i];
    fill("edges", {x0: edges.map(i => d.place[end(2 * i)]), y0: edges.map(i => -d.place[end(2 * i) + 1]),
      x1: edges.map(i => d.place[end(2 * i + 1)]), y1: edges.map(i => -d.place[end(2 * i + 1) + 1])});
    fill("walls", {x: walls.map(i => d.walls[2 * i]), y: walls.map(i => -d.walls[2 * i + 1])});
  },
  draw() { drawMap(); drawMoment(); drawMarks(); drawWords(); },
  start() {
    const places = part("places");
    places.selected.properties.indices.change.connect(() => {
      const [i] = places.selected.indices;
      if (i !== undefined) choose(page.places[i].goal);
    });
    $("measure").onchange = () => { measure = $("measure").value; redraw(); };
    $("moment").oninput = () => { page.moment = Number($("moment").value); redraw(); };
    playButton("play-time", 140, () => { if (page.moment === last()) page.moment = 0; }, () => {
      if (page.moment >= last()) return false;
      page.moment += 1;
      redraw();
    });
    $("map-frame").onkeydown = move;
    addEventListener("resize", () => { frameMap(); drawWords(); });
  },
});
