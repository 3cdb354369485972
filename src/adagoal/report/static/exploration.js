/* The page of an exploration: a map, a chosen goal, a moment in time, a table, all of the same data. */

const UNSEEN = 0, OPEN = 1, DONE = 2, BEYOND = 3;
const STANDS = ["never seen", "open", "finished", "beyond the radius"];
const NOTHING = "none yet";
const page = {data: null, model: null, goal: -1, moment: 0, measure: "lower", tries: {}, clock: null, agent: null};

/* The colours of the page, light or dark. */
function tints() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["unseen", "beyond", "orange", "blue", "ink", "line"].map(
    name => [name, style.getPropertyValue(`--${name}`).trim()]));
}
const last = () => page.data.moment_steps.length - 1;
const label = state => page.data.facts.labels[state];

/* What was known about a goal at a moment. */
function at(g, moment) {
  const d = page.data, F = last() + 1, k = g * F + moment;
  if (moment === last() || !d.facts.history) {
    return {lower: d.lower[g], upper: d.upper[g], stand: d.stand[g], chosen: d.moment_chosen[k]};
  }
  return {lower: d.moment_lower[k], upper: d.moment_upper[k], stand: d.moment_stand[k], chosen: d.moment_chosen[k]};
}

/* --- the map: places, each with the states that lie there --- */

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
  page.row = new Int32Array(d.visits.length).fill(-1);
  d.goal.forEach((s, g) => { page.row[s] = g; });
  page.at = new Int32Array(d.visits.length).fill(-1);
  page.places.forEach((place, i) => {
    for (const s of place.states) page.at[s] = i;
    const goals = place.states.map(s => page.row[s]).filter(g => g >= 0);
    place.goal = goals.length ? goals.reduce((a, b) => d.lower[b] < d.lower[a] ? b : a) : -1;
  });
}

/* The value of a place: states that share one are added up, or the smallest counts. */
function valueOf(place) {
  const d = page.data;
  if (page.measure === "visits") return place.states.reduce((sum, s) => sum + d.visits[s], 0);
  const goals = place.states.map(s => page.row[s]).filter(g => g >= 0).map(g => at(g, page.moment));
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
  const d = page.data, box = $("legend"), swatch = (colour, text) => {
    const item = document.createElement("span"), mark = document.createElement("span");
    mark.className = "swatch";
    mark.style.background = colour;
    item.append(mark, text);
    return item;
  };
  if (page.measure === "stand") { box.replaceChildren(...STANDS.map((text, i) => swatch(stands[i], text))); return; }
  const bar = document.createElement("span");
  bar.className = "ramp";
  bar.style.background = `linear-gradient(to right, ${RAMP.join(",")})`;
  const counted = page.measure === "visits" || page.measure === "choices";
  const high = counted ? whole(top) : page.measure === "width" ? round(top) : round(d.facts.radius + d.facts.epsilon, 1);
  box.replaceChildren("0", bar, high + (counted ? "" : " steps"),
    ...(counted ? [] : [swatch(tint.beyond, "beyond"), swatch(tint.unseen, "no bound yet")]),
    swatch(`linear-gradient(to right, ${tint.orange} 30%, transparent 30%)`, "orange edge: open"));
}

function drawMap() {
  const d = page.data, tint = tints(), values = page.places.map(valueOf), fills = colours(values, tint);
  const still = page.places.map(p => p.goal >= 0 && at(p.goal, page.moment).stand === OPEN);
  const chosen = page.goal >= 0 ? page.at[d.goal[page.goal]] : -1;
  fill("places", {
    x: page.places.map(p => p.x), y: page.places.map(p => p.y), fill: fills,
    edge: page.places.map((_, i) => i === chosen ? tint.ink : still[i] ? tint.orange : tint.line),
    thick: page.places.map((_, i) => i === chosen ? 4 : still[i] ? 2.5 : 0.7),
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

/* --- the chosen goal: its policy, path and history --- */

const point = s => [page.data.place[2 * s], -page.data.place[2 * s + 1]];

function drawPolicy() {
  const d = page.data, arrows = {x0: [], y0: [], x1: [], y1: [], angle: []}, resets = {x: [], y: []};
  const policy = page.goal >= 0 && page.model.known ? page.model.policy(page.goal) : null;
  const path = {x: [], y: []};
  const {x_range: across, y_range: up, height} = plots.map;  // pixels per unit differ on the two axes of a graph
  const ratio = (height / (up.end - up.start)) / (($("map").clientWidth || height) / (across.end - across.start));
  const walk = policy ? page.model.path(policy, d.goal[page.goal]) : [];
  const along = new Set(walk), many = page.places.length > 600;
  const shown = policy && !d.facts.grid ? page.model.reachable(policy) : null;
  for (const place of policy ? page.places : []) {
    const s = place.states.find(t => along.has(t)) ?? (place.goal >= 0 ? d.goal[place.goal] : place.states[0]);
    if (s === d.goal[page.goal] || (many && !along.has(s)) || d.visits[s] === 0 || (shown && !shown.has(s))) continue;
    const action = page.model.action(policy, s, 0);
    if (action >= page.model.actions) { resets.x.push(place.x); resets.y.push(place.y); continue; }
    const successor = page.model.likely(s, action);
    if (successor < 0) continue;
    const [x, y] = point(successor), length = Math.hypot(x - place.x, y - place.y);
    if (!(length > 0)) continue;
    const share = d.facts.grid ? 0.34 / length : 0.8;
    const dx = (x - place.x) * share, dy = (y - place.y) * share, back = d.facts.grid ? 1 : 0;
    arrows.x0.push(place.x - back * dx); arrows.y0.push(place.y - back * dy);
    arrows.x1.push(place.x + dx); arrows.y1.push(place.y + dy);
    arrows.angle.push(Math.atan2(dy * ratio, dx) - Math.PI / 2);
  }
  for (const s of walk) { const [x, y] = point(s); if (!Number.isNaN(x)) { path.x.push(x); path.y.push(y); } }
  fill("arrows", arrows);
  fill("resets", resets);
  fill("path", path);
  tellPath(policy, walk);
}

function tellPath(policy, walk) {
  const d = page.data;
  if (page.goal < 0) { $("path-text").textContent = ""; return; }
  if (!page.model.known) { $("path-text").textContent = "This run keeps no empirical model, so no path can be shown."; return; }
  if (!policy) {
    $("path-text").textContent = d.policy_row[page.goal] < 0 && d.stand[page.goal] !== BEYOND
      ? `The policy of this goal is not in this file. Open the run with: ${$("watch").textContent}`
      : "Goals beyond the radius have no policy.";
    return;
  }
  const names = walk.slice(0, 12).map(label).join(" → ") + (walk.length > 12 ? " → …" : "");
  const arrives = walk[walk.length - 1] === d.goal[page.goal];
  $("path-text").textContent = `Most likely path (${walk.length - 1} steps${arrives ? "" : ", and then round in a circle or into the unknown"}): ${names}`;
}

function drawGoal() {
  const d = page.data, g = page.goal;
  if (g < 0) return;
  const now = at(g, page.moment), end = page.moment === last();
  $("goal-title").textContent = `Goal ${label(d.goal[g])}`;
  $("interval-text").textContent = now.stand === UNSEEN ? "not seen yet at this time"
    : Number.isFinite(now.upper) ? `${round(now.lower, 3)} to ${round(now.upper, 3)} expected steps`
    : `at least ${round(now.lower, 3)} expected steps; no upper bound yet`;
  const known = Number.isNaN(d.error[g]) ? "" : `, error at most ${round(d.error[g], 3)}`;
  $("goal-text").textContent = `${STANDS[now.stand]}${end ? known : ""}; chosen in ${whole(now.chosen)} episodes`
    + (end ? `, reached in ${whole(d.reached[g])}; ${whole(d.visits[d.goal[g]])} visits` : " until then");
  const moments = [...Array(last() + 1).keys()].filter(f => !d.facts.history || at(g, f).stand !== UNSEEN);
  const top = Math.max(2 * (d.facts.radius + d.facts.epsilon), Number.isFinite(d.upper[g]) ? d.upper[g] : 0);
  const band = {x: [], low: [], high: []};
  if (d.facts.history) moments.forEach((f, i) => {  // what was known holds until the next moment
    for (const t of i + 1 < moments.length ? [f, moments[i + 1]] : [f]) {
      band.x.push(Math.max(d.moment_steps[t], 1));
      band.low.push(at(g, f).lower);
      band.high.push(Math.min(at(g, f).upper, top));
    }
  });
  fill("band", band);
  const highest = Math.max(...moments.map(f => at(g, f).upper).filter(Number.isFinite), d.facts.radius);
  frame(plots.shrink, [Math.max(d.moment_steps[moments[0]] ?? 1, 1), Math.max(d.facts.steps, 2)], [0, 1.1 * Math.min(highest, top)]);
  part("radius-shrink").location = d.facts.radius;
  $("shrink-note").textContent = d.facts.history ? "Dotted: the radius. Where there is no upper bound yet, the band is cut off."
    : "This run was made by an earlier version, which kept no history of the bounds.";
}

async function choose(g) {
  if (g < 0 || g >= page.data.goal.length) return;
  page.goal = g;
  stopAgent();
  drawMap(); drawPolicy(); drawGoal(); drawTries(); marks();
  page.table.show();
  if (document.body.dataset.live && page.model.known && !page.model.policy(g) && page.data.stand[g] !== BEYOND) {
    const answer = await fetch(`policy?goal=${page.data.goal[g]}`);
    if (answer.ok) page.model.fetched[g] = (await unpack(await answer.arrayBuffer())).policy;
    if (page.goal === g) { drawPolicy(); drawTries(); }
  }
}

function marks() {
  const d = page.data, found = {x: [], y: [], marker: [], size: [], fill: []};
  const add = (s, marker, size, colour) => {
    const [x, y] = point(s);
    if (Number.isNaN(x)) return;
    found.x.push(x); found.y.push(y); found.marker.push(marker); found.size.push(size); found.fill.push(colour);
  };
  if (d.facts.start !== null) add(d.facts.start, "star", 18, "#ffffff");
  if (page.goal >= 0) add(d.goal[page.goal], "diamond", 15, "#e69f00");
  if (page.agent !== null) add(page.agent, "circle", 15, "#009e73");
  fill("marks", found);
}

/* --- try it --- */

function patience() { return Math.ceil(50 * (page.data.facts.radius + page.data.facts.epsilon)) + 1000; }

function stopAgent() {
  if (page.walking) clearInterval(page.walking);
  page.walking = null;
  page.agent = null;
}

function note(steps, arrived) {
  const tries = page.tries[page.goal] ??= {steps: [], lost: 0};
  if (arrived) tries.steps.push(steps); else tries.lost += 1;
}

function playMany(times) {
  const goal = page.data.goal[page.goal], policy = page.model.policy(page.goal);
  for (let i = 0; i < times; i++) {
    let steps = -1, state = -1;
    for (state of page.model.episode(policy, goal, patience())) steps += 1;
    note(steps, state === goal);
  }
  drawTries();
}

function playOne() {
  const goal = page.data.goal[page.goal], walk = [...page.model.episode(page.model.policy(page.goal), goal, patience())];
  const finish = () => { stopAgent(); note(walk.length - 1, walk[walk.length - 1] === goal); drawTries(); marks(); };
  stopAgent();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) { finish(); return; }
  let t = 0;
  page.walking = setInterval(() => {
    if (t >= walk.length) { finish(); return; }
    page.agent = walk[t];
    $("try-text").textContent = `step ${t}: ${label(walk[t])}`;
    t += 1;
    marks();
  }, Math.max(20, Math.min(150, 4000 / walk.length)));
}

function drawTries() {
  const d = page.data, g = page.goal, able = g >= 0 && page.model.known && page.model.policy(g) !== null;
  const tries = page.tries[g] || {steps: [], lost: 0}, n = tries.steps.length;
  for (const id of ["try-one", "try-many"]) $(id).disabled = !able;
  $("try-clear").disabled = n + tries.lost === 0;
  const mean = tries.steps.reduce((a, b) => a + b, 0) / n;
  const spread = Math.sqrt(tries.steps.reduce((a, b) => a + (b - mean) ** 2, 0) / Math.max(n - 1, 1) / n);
  if (g < 0) return;
  const claim = `${d.facts.guarantee ? "certified" : "estimated"}: ${round(d.lower[g])} to ${round(d.upper[g])}`;
  const lost = tries.lost ? `; ${whole(tries.lost)} left what is known or took too long` : "";
  $("try-text").textContent = n ? `Measured: ${round(mean)} ± ${round(1.96 * spread)} steps over ${whole(n)} episodes `
    + `on the observed model; ${claim}${lost}` : able
    ? `Nothing measured yet; ${claim}${lost}. The policy plays on the model that the run has observed.`
    : "There is no policy to play here.";
  const top = Math.max(...tries.steps, 1), size = Math.max(1, Math.ceil(top / 40)), bins = {};
  for (const steps of tries.steps) { const k = Math.floor(steps / size); bins[k] = (bins[k] || 0) + 1; }
  const keys = Object.keys(bins).map(Number), most = Math.max(...Object.values(bins), 1);
  fill("bars", {left: keys.map(k => k * size - size / 2), right: keys.map(k => (k + 1) * size - size / 2),
    top: keys.map(k => bins[k])});
  const bounded = Number.isFinite(d.upper[g]);
  fill("certified", {left: [d.lower[g]], right: [bounded ? d.upper[g] : Math.max(top, d.lower[g])], top: [most]});
  part("mean").location = n ? mean : null;
  const ends = [...tries.steps, d.lower[g], bounded ? d.upper[g] : d.lower[g] + 1], low = Math.min(...ends), high = Math.max(...ends);
  frame(plots.tries, [Math.max(low - 1 - size, -1), high + 1 + size], [0, 1.1 * most]);
}

/* --- time --- */

function drawMoment() {
  const d = page.data, f = page.moment, now = Math.max(d.moment_steps[f], 1);
  const stands = [0, 0, 0, 0];
  for (let g = 0; g < d.goal.length; g++) stands[at(g, f).stand] += 1;
  $("moment-text").textContent = `after ${whole(d.moment_steps[f])} steps, ${whole(d.moment_episodes[f])} episodes: `
    + (d.facts.history || f === last() ? `${stands[DONE]} finished, ${stands[OPEN]} open, ${stands[BEYOND]} beyond, `
    + `${stands[UNSEEN]} not seen yet` : "only the choices of that time are kept");
  $("moment-note").textContent = page.measure === "visits" && f !== last() ? "Visits are those of the end." : "";
  $("moment").setAttribute("aria-valuetext", $("moment-text").textContent);
  for (const name of ["shrink", "error", "open"]) part(`now-${name}`).location = now;
  drawMap();
  drawGoal();
}

function playTime() {
  const going = page.clock !== null;
  if (going) { clearInterval(page.clock); page.clock = null; }
  else {
    if (page.moment === last()) page.moment = 0;
    page.clock = setInterval(() => {
      if (page.moment >= last()) { playTime(); return; }
      page.moment += 1;
      $("moment").value = page.moment;
      drawMoment();
    }, 140);
  }
  $("play-time").textContent = going ? "Play" : "Pause";
  $("play-time").setAttribute("aria-pressed", String(!going));
}

/* --- putting it together --- */

function makeTable() {
  const d = () => page.data, number = (name, digits) => ({head: name, value: g => d()[name][g],
    text: g => Number.isNaN(d()[name][g]) ? "" : digits === undefined ? whole(d()[name][g]) : round(d()[name][g], digits)});
  const named = {head: "goal", left: true, value: g => d().goal[g], text: g => label(d().goal[g]), cell: (cell, g) => {
    const button = document.createElement("button");
    button.type = "button"; button.className = "link"; button.textContent = label(d().goal[g]);
    button.onclick = () => choose(g);
    cell.append(button);
  }};
  const visits = {head: "visits", value: g => d().visits[d().goal[g]], text: g => whole(d().visits[d().goal[g]])};
  page.table = new SortedTable($("table"), [named, number("lower", 3), number("upper", 3), number("error", 3), visits,
    {...number("tried"), head: "episodes"}, number("reached"),
    {head: "state", left: true, value: g => STANDS[d().stand[g]], text: g => STANDS[d().stand[g]]}], {
    by: 1, chosen: g => g === page.goal,
    told: (all, first, shown, leaf, end) => {
      $("count").textContent = all ? `${first + 1} to ${first + shown} of ${whole(all)}` : "nothing found";
      $("before").disabled = leaf === 0;
      $("after").disabled = leaf === end;
    }});
  $("search").oninput = () => { page.table.words = $("search").value; page.table.page = 0; page.table.show(); };
  $("before").onclick = () => { page.table.page -= 1; page.table.show(); };
  $("after").onclick = () => { page.table.page += 1; page.table.show(); };
}

/* Arrow keys: the nearest goal in that direction. */
function move(event) {
  const ways = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]}, way = ways[event.key];
  if (!way) return;
  event.preventDefault();
  const here = page.goal >= 0 ? page.places[page.at[page.data.goal[page.goal]]] : null;
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

function take(data) {
  const first = page.data === null, atEnd = first || page.moment === last();
  const goal = page.goal >= 0 ? page.data.goal[page.goal] : -1;
  page.data = data;
  page.model = new Model(data);
  if (!first) for (const name of ["words", "unknown"]) $(name).innerHTML = data.facts[name];
  places();
  page.goal = goal >= 0 ? page.row[goal] : -1;
  page.moment = atEnd ? last() : Math.min(page.moment, last());
  $("moment").max = last();
  $("moment").value = page.moment;
  frameMap();
  const d = data, N = d.shapes.trace[0], rows = [...Array(N).keys()];
  const known = rows.filter(i => d.trace[4 * i + 2] > 0 && Number.isFinite(d.trace[4 * i + 2]));
  fill("trace-error", {x: known.map(i => d.trace[4 * i]), error: known.map(i => d.trace[4 * i + 2])});
  const steps = rows.map(i => d.trace[4 * i]), open = rows.map(i => d.trace[4 * i + 3]);
  fill("trace-open", {x: [...steps, d.facts.steps], open: [...open, d.stand.reduce((n, s) => n + (s === OPEN), 0)]});
  part("epsilon").location = d.facts.epsilon;
  const span = [Math.max(steps[0] ?? 1, 1), Math.max(d.facts.steps, 2)], errors = known.map(i => d.trace[4 * i + 2]);
  frame(plots.error, span, [0.7 * Math.min(d.facts.epsilon, ...errors), 1.4 * Math.max(d.facts.epsilon, ...errors)]);
  frame(plots.open, span, [0, 1.1 * Math.max(...open, 1)]);
  page.table.rows = [...data.goal.keys()];
  page.table.show();
  drawMoment(); drawPolicy(); drawTries(); marks();
}

async function begin() {
  makeFigures();
  makeTable();
  take(await embedded());
  await drawFigures();
  const source = part("places");
  source.selected.properties.indices.change.connect(() => {
    const [i] = source.selected.indices;
    if (i !== undefined && page.places[i].goal >= 0) choose(page.places[i].goal);
  });
  $("measure").onchange = () => { page.measure = $("measure").value; drawMoment(); };
  $("moment").oninput = () => { page.moment = Number($("moment").value); drawMoment(); };
  $("play-time").onclick = playTime;
  $("try-one").onclick = playOne;
  $("try-many").onclick = () => playMany(100);
  $("try-clear").onclick = () => { delete page.tries[page.goal]; drawTries(); };
  $("map-frame").onkeydown = move;
  $("goal-search").oninput = () => {
    const words = $("goal-search").value.trim().toLowerCase();
    const found = [...page.data.goal.keys()].find(g => String(page.data.goal[g]) === words)
      ?? [...page.data.goal.keys()].find(g => label(page.data.goal[g]).toLowerCase().includes(words));
    if (words && found !== undefined) choose(found);
  };
  document.addEventListener("click", event => {
    const goal = event.target.dataset ? event.target.dataset.goal : undefined;
    if (goal !== undefined) choose(page.row[Number(goal)]);
  });
  window.repaint = () => drawMoment();
  addEventListener("resize", frameMap);
  document.body.dataset.ready = "yes";
  listen(take);
}

begin();
