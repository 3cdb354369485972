/* The map of an exploration: places, their colours, and the way from one to the next. */

/* Places, each with the states that lie there. */

function places() {
  const d = page.data, found = new Map();
  for (let s = 0; s < d.visits.length; s++) {
    const x = d.place[2 * s], y = -d.place[2 * s + 1];
    if (Number.isNaN(x)) continue;
    const key = `${x} ${y}`;
    if (!found.has(key)) found.set(key, {x, y, states: []});
    found.get(key).states.push(s);
  }
  page.places = [...found.values()];
  page.row = {};
  page.goalsAt = Array.from(d.visits, () => []);
  d.goal.forEach((number, g) => { page.row[number] = g; for (const s of targets(g)) page.goalsAt[s].push(g); });
  page.at = new Int32Array(d.visits.length).fill(-1);
  page.places.forEach((place, i) => {
    for (const s of place.states) page.at[s] = i;
    const goals = place.states.flatMap(s => page.goalsAt[s]);
    place.goal = goals.length ? goals.reduce((a, b) => d.lower[b] < d.lower[a] ? b : a) : -1;
  });
}

/* The value of a place: states that share one are added up, or the smallest counts. */
function valueOf(place) {
  const d = page.data;
  if (page.measure === "visits") return place.states.reduce((sum, s) => sum + d.visits[s], 0);
  const goals = place.states.flatMap(s => page.goalsAt[s]).map(g => at(g, page.moment));
  if (page.measure === "choices") return goals.reduce((sum, k) => sum + k.chosen, 0);
  const known = goals.filter(k => k.stand !== UNSEEN);
  if (!known.length) return NaN;
  const best = known.reduce((a, b) => b.lower < a.lower ? b : a);
  if (page.measure === "stand") return best.stand;
  if (best.stand === BEYOND) return -1;
  return page.measure === "width" ? best.upper - best.lower : best[page.measure];
}

function colours(values, tint) {
  const d = page.data, top = Math.max(...values.filter(Number.isFinite), 0);
  const ways = {
    lower: v => v / (d.facts.radius + d.facts.epsilon), upper: v => v / (d.facts.radius + d.facts.epsilon),
    width: v => v / Math.max(top, 1e-9), visits: v => Math.log1p(v) / Math.log1p(Math.max(top, 1)),
    choices: v => Math.sqrt(v / Math.max(top, 1)),
  };
  const stands = [tint.unseen, tint.orange, tint.blue, tint.beyond];
  const counted = page.measure === "visits" || page.measure === "choices";
  const fills = values.map(v => {
    if (page.measure === "stand") return stands[Number.isNaN(v) ? UNSEEN : v];
    if (counted) return v > 0 ? ramp(ways[page.measure](v)) : tint.unseen;
    return Number.isNaN(v) || v === Infinity ? tint.unseen : v < 0 ? tint.beyond : ramp(ways[page.measure](v));
  });
  legend(top, stands, tint);
  return fills;
}

function legend(top, stands, tint) {
  const d = page.data, box = $("legend");
  if (page.measure === "stand") { box.replaceChildren(...STANDS.map((text, i) => swatch(stands[i], text))); return; }
  const bar = document.createElement("span");
  bar.className = "ramp";
  bar.style.background = `linear-gradient(to right, ${RAMP.join(",")})`;
  const counted = page.measure === "visits" || page.measure === "choices";
  const high = counted ? whole(top) : page.measure === "width" ? round(top) : round(d.facts.radius + d.facts.epsilon, 1);
  box.replaceChildren("0", bar, high + (counted ? "" : " steps"),
    ...(counted ? [] : [swatch(tint.beyond, "beyond"), swatch(tint.unseen, "no bound yet")]),
    ...(fine() ? [] : [swatch(`linear-gradient(to right, ${tint.orange} 30%, transparent 30%)`, "orange edge: open")]));
}

/* Whether the cells are so small that edges would hide them. */
const fine = () => page.data.facts.grid && Math.max(...page.data.facts.shape) > 40;

function drawMap() {
  const d = page.data, tint = tints(), values = page.places.map(valueOf), fills = colours(values, tint);
  const still = page.places.map(p => p.goal >= 0 && at(p.goal, page.moment).stand === OPEN);
  const chosen = new Set(page.goal >= 0 ? [...targets(page.goal)].map(s => page.at[s]) : []);
  fill("places", {
    x: page.places.map(p => p.x), y: page.places.map(p => p.y), fill: fills,
    edge: page.places.map((_, i) => chosen.has(i) ? tint.ink : still[i] ? tint.orange : tint.line),
    thick: page.places.map((_, i) => chosen.has(i) ? 4 : fine() ? 0 : still[i] ? 2.5 : 0.7),
    name: page.places.map(p => p.states.map(label).slice(0, 4).join("; ") + (p.states.length > 4 ? "; ..." : "")),
    text: page.places.map(p => p.goal >= 0 ? interval(at(p.goal, page.moment)) : "not a goal that was seen"),
  });
}

function interval(k) {
  return k.stand === UNSEEN ? "never seen" : `${round(k.lower)} to ${round(k.upper)} steps, ${STANDS[k.stand]}`;
}

function frameMap() {
  const d = page.data, [rows, columns] = d.facts.shape, plot = plots.map, grid = d.facts.grid;
  part("cells").visible = grid;
  part("nodes").visible = !grid;
  const [left, right, low, high] = grid ? [-0.6, columns - 0.4, -rows + 0.4, 0.6] : [-0.5, columns - 0.5, -1.05, 0.05];
  frame(plot, [left, right], [low, high]);
  const width = $("map").clientWidth || 600;
  plot.height = grid ? Math.round(Math.min(Math.max(width * rows / columns, 180), 620)) + 30 : 480;
  if (grid && width * rows / columns > 620) plot.width_policy = "fixed", plot.width = Math.round(620 * columns / rows);
  const many = d.shapes.edges[0], end = i => 2 * d.edges[i];
  const ends = [...Array(many).keys()];
  fill("edges", {x0: ends.map(i => d.place[end(2 * i)]), y0: ends.map(i => -d.place[end(2 * i) + 1]),
    x1: ends.map(i => d.place[end(2 * i + 1)]), y1: ends.map(i => -d.place[end(2 * i + 1) + 1])});
  const walls = [...Array(d.shapes.walls[0]).keys()];
  fill("walls", {x: walls.map(i => d.walls[2 * i]), y: walls.map(i => -d.walls[2 * i + 1])});
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
