/* What the page of a training shows beside its curves: the goal space over time, the certificate, the film. */

const space = {cycle: -1, measure: "recent", clock: null, wired: false};
const SQUARES = 30, WINDOW = 10;
const VERDICTS = {certified: "#0072b2", refuted: "#d55e00", open: "#999999"};

const extent = d => [0, 1].map(k => [d.facts.boxes.train[0][k], d.facts.boxes.train[1][k]]);

/* Counts of chosen goals in squares, of the cycles from..to. */
function counted(d, from, to) {
  const [[x0, x1], [y0, y1]] = extent(d), B = d.shapes.chosen[1], found = new Float64Array(SQUARES * SQUARES);
  const place = (value, low, high) => Math.min(Math.max(Math.floor((value - low) / (high - low || 1) * SQUARES), 0), SQUARES - 1);
  for (let i = from * B; i < (to + 1) * B; i++) {
    found[place(d.chosen[2 * i], x0, x1) * SQUARES + place(d.chosen[2 * i + 1], y0, y1)] += 1;
  }
  return found;
}

/* D or E at the time of the slider: the map of the end, or the last one that was kept before. */
function believed(d, name) {
  const cycle = space.cycle * d.facts.every, kept = d.facts.map_cycles.filter(c => c <= cycle).length - 1;
  if (d[name] && (space.cycle === d.shapes.chosen[0] - 1 || !d.maps)) return {field: d[name], shape: d.shapes[name], when: "in the end"};
  const [, , columns, rows] = d.shapes.maps, size = columns * rows, at = (2 * Math.max(kept, 0) + (name === "E")) * size;
  return {field: d.maps.subarray(at, at + size), shape: [columns, rows], when: `at the start of cycle ${whole(d.facts.map_cycles[Math.max(kept, 0)] + 1)}`};
}

/* The largest E at any time, so that a colour means the same wherever the slider is. */
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
    const map = believed(d, space.measure);
    ({field, when} = map);
    [columns, rows] = map.shape;
    [[x0, y0], [x1, y1]] = d.facts.ends;
  } else {
    field = counted(d, space.measure === "recent" ? Math.max(space.cycle - WINDOW, 0) : 0, space.cycle);
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
  frame(plots.space, [left, right], [low, high]);
  const bar = document.createElement("span");
  bar.className = "ramp";
  bar.style.background = `linear-gradient(to right, ${RAMP.join(",")})`;
  $("space-legend").replaceChildren("0", bar, values ? `${round(top)} steps` : `${whole(top)} goals`,
    "; orange: test space" + (d.facts.boxes.table ? "; blue: table" : ""));
  $("space-text").textContent = `cycle ${whole((space.cycle + 1) * d.facts.every)} of ${whole(cycles * d.facts.every)}, `
    + `${whole((space.cycle + 1) * d.facts.every * d.facts.episodes)} episodes` + (values ? `; ${space.measure} ${when}` : "");
}

function playSpace() {
  const going = space.clock !== null;
  if (going) { clearInterval(space.clock); space.clock = null; }
  else {
    const end = page.data.shapes.chosen[0] - 1;
    if (space.cycle >= end) space.cycle = 0;
    space.clock = setInterval(() => {
      if (space.cycle >= end) { playSpace(); return; }
      space.cycle = Math.min(space.cycle + Math.max(1, Math.ceil(end / 60)), end);
      $("cycle").value = space.cycle;
      drawSpace();
    }, 120);
  }
  $("play-space").textContent = going ? "Play" : "Pause";
  $("play-space").setAttribute("aria-pressed", String(!going));
}

function drawCells() {
  const cells = page.data.facts.cells;
  if (!cells.length) $("cells").closest("section").hidden = true;
  if (!cells.length || !plots.cells) return;
  const second = cells[0].low.length > 1 ? 1 : 0, of = (end, k) => cells.map(cell => cell[end][k]);
  fill("verdicts", {left: of("low", 0), right: of("high", 0), bottom: of("low", second), top: of("high", second),
    fill: cells.map(cell => VERDICTS[cell.verdict]),
    text: cells.map(cell => `${cell.verdict}: reached ${cell.reached} of ${cell.rollouts}`)});
  frame(plots.cells, [Math.min(...of("low", 0)), Math.max(...of("high", 0))], [Math.min(...of("low", second)), Math.max(...of("high", second))]);
  $("cells-text").replaceChildren(...Object.entries(VERDICTS).map(([verdict, colour]) => {
    const share = cells.filter(cell => cell.verdict === verdict).reduce((sum, cell) => sum + cell.share, 0);
    return swatch(colour, `${verdict} ${Math.round(100 * share)}%`);
  }));
}

function showFrame(number) {
  const film = $("film"), frames = Number(film.dataset.frames);
  film.style.transform = `translateX(${-100 * number / frames}%)`;
  $("frame").value = number;
}

function playFilm() {
  if (space.film) { clearInterval(space.film); space.film = null; }
  else space.film = setInterval(() => showFrame((Number($("frame").value) + 1) % Number($("film").dataset.frames)), 250);
  $("play-film").textContent = space.film ? "Pause" : "Play";
  $("play-film").setAttribute("aria-pressed", String(Boolean(space.film)));
}

function wire() {
  space.wired = true;
  if ($("space")) {
    $("space-measure").onchange = () => { space.measure = $("space-measure").value; drawSpace(); };
    $("cycle").oninput = () => { space.cycle = Number($("cycle").value); drawSpace(); };
    $("play-space").onclick = playSpace;
  }
  if ($("film")) {
    $("play-film").onclick = playFilm;
    $("frame").oninput = () => showFrame(Number($("frame").value));
    $("film").style.width = `${100 * Number($("film").dataset.frames)}%`;
  }
}

function more(data) {
  const first = !space.wired;
  if (first) wire(); else $("words").innerHTML = data.facts.words;
  if ($("space")) {
    const end = data.shapes.chosen[0] - 1;
    if (space.cycle < 0 || space.cycle === Number($("cycle").max)) space.cycle = end;
    $("cycle").max = end;
    $("cycle").value = space.cycle;
    for (const option of $("space-measure").options) option.disabled = ["D", "E"].includes(option.value) && !data.D && !data.maps;
    drawSpace();
  }
  drawCells();
}
