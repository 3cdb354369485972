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
const named = g => page.data.facts.names ? page.data.facts.names[g] : label(page.data.goal[g]);
/* The states of a goal: it is reached in any of them. */
const targets = g => page.data.member.subarray(page.data.member_row[g], page.data.member_row[g + 1]);
const visits = g => targets(g).reduce((sum, s) => sum + page.data.visits[s], 0);

/* What was known about a goal at a moment. */
function at(g, moment) {
  const d = page.data, F = last() + 1, k = g * F + moment;
  if (moment === last()) {
    return {lower: d.lower[g], upper: d.upper[g], stand: d.stand[g], chosen: d.moment_chosen[k]};
  }
  return {lower: d.moment_lower[k], upper: d.moment_upper[k], stand: d.moment_stand[k], chosen: d.moment_chosen[k]};
}

/* --- time --- */

function drawMoment() {
  const d = page.data, f = page.moment, now = Math.max(d.moment_steps[f], 1);
  const stands = [0, 0, 0, 0];
  for (let g = 0; g < d.goal.length; g++) stands[at(g, f).stand] += 1;
  $("moment-text").textContent = `after ${whole(d.moment_steps[f])} steps, ${whole(d.moment_episodes[f])} episodes: `
    + `${stands[DONE]} finished, ${stands[OPEN]} open, ${stands[BEYOND]} beyond, ${stands[UNSEEN]} not seen yet`;
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
  const goal = {head: "goal", left: true, value: g => d().goal[g], text: named, cell: (cell, g) => {
    const button = document.createElement("button");
    button.type = "button"; button.className = "link"; button.textContent = named(g);
    button.onclick = () => choose(g);
    cell.append(button);
  }};
  const seen = {head: "visits", value: visits, text: g => whole(visits(g))};
  page.table = new SortedTable($("table"), [goal, number("lower", 3), number("upper", 3), number("error", 3), seen,
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

function take(data) {
  const first = page.data === null, atEnd = first || page.moment === last();
  const goal = page.goal >= 0 ? page.data.goal[page.goal] : -1;
  page.data = data;
  page.model = new Model(data);
  if (!first) for (const name of ["words", "unknown"]) $(name).innerHTML = data.facts[name];
  places();
  page.goal = page.row[goal] ?? -1;
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
      ?? [...page.data.goal.keys()].find(g => named(g).toLowerCase().includes(words));
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
