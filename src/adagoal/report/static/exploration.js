/* What the panels of an exploration share: the chosen goal, the moment in time, and what is known about goals. */

const UNSEEN = 0, OPEN = 1, DONE = 2, BEYOND = 3;
const STANDS = ["never seen", "open", "finished", "beyond the radius"];
Object.assign(page, {model: null, goal: -1, moment: 0, places: [], row: {}, at: [], goalsAt: []});

const last = () => page.data.moment_steps.length - 1;
const label = state => page.data.facts.labels[state];
const named = g => page.data.facts.names ? page.data.facts.names[g] : label(page.data.goal[g]);
/* The states of a goal: it is reached in any of them. */
const targets = g => page.data.member.subarray(page.data.member_row[g], page.data.member_row[g + 1]);
const visits = g => targets(g).reduce((sum, s) => sum + page.data.visits[s], 0);

/* What was known about a goal at a moment. */
function at(g, moment) {
  const d = page.data, F = last() + 1, k = g * F + moment;
  if (moment === last()) {  // the arrays of moments have single precision
    return {lower: d.lower[g], upper: d.upper[g], stand: d.stand[g], chosen: d.moment_chosen[k]};
  }
  return {lower: d.moment_lower[k], upper: d.moment_upper[k], stand: d.moment_stand[k], chosen: d.moment_chosen[k]};
}

/* The number in a link such as report.html#goal=20, and its goal; undefined without one. */
const linkedNumber = () => /^#goal=(\d+)$/.exec(location.hash)?.[1];
const linkedGoal = () => page.row[linkedNumber()];

/* A button that chooses a goal. */
function goalLink(g) {
  const button = document.createElement("button");
  button.type = "button"; button.className = "link"; button.textContent = named(g); button.dataset.goal = page.data.goal[g];
  return button;
}

/* The goal that a page shows first: the open one with the largest error, or the farthest if none is open. Goals with a
   policy and an upper bound come first, because the charts of the others would be empty. Without upper bounds the
   farthest goal is the one that was visited least. */
function firstGoal(d) {
  const all = [...d.goal.keys()], able = all.filter(g => d.policy_row[g] >= 0), full = able.filter(g => Number.isFinite(d.upper[g]));
  const goals = full.length ? full : able.length ? able : all, open = goals.filter(g => d.stand[g] === OPEN);
  const most = (among, value) => among.reduce((a, b) => value(b) > value(a) ? b : a, among[0] ?? -1);
  return open.length ? most(open, g => d.error[g]) : most(goals, full.length ? g => d.facts.measure.sign * d.upper[g] : g => -visits(g));
}

let linkTimer = null;
async function choose(g) {
  if (!(g >= 0 && g < page.data.goal.length)) return;
  page.goal = g;
  // The address becomes a link to the goal, later: browsers refuse hundreds of changes while an arrow key is held down.
  // A page inside a notebook (about:srcdoc) has no address of its own.
  clearTimeout(linkTimer);
  if (location.protocol !== "about:") linkTimer = setTimeout(() => history.replaceState(null, "", `#goal=${page.data.goal[g]}`), 200);
  stopAgent();
  redraw();
  if (document.body.dataset.live && page.model.known && !page.model.policy(g) && page.data.stand[g] !== BEYOND) {
    const answer = await fetch(`policy?goal=${page.data.goal[g]}`);
    if (answer.ok) page.model.fetched[g] = (await unpack(await answer.arrayBuffer())).policy;
    if (page.goal === g) redraw();
  }
}

/* Places of the map, each with the states that are drawn there. */
function findPlaces(d) {
  const found = new Map();
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
    place.goal = goals.length ? goals.reduce((a, b) => d.facts.measure.sign * (d.lower[b] - d.lower[a]) < 0 ? b : a) : -1;
  });
}

addPanel({
  show(data) {  // a live page keeps the chosen goal, and stays at the end of time if it was there
    const before = page.previous, goal = before && page.goal >= 0 ? before.goal[page.goal] : -1;
    const atEnd = !before || page.moment === before.moment_steps.length - 1;
    page.model = new Model(data);
    STANDS[BEYOND] = data.facts.measure.beyond;
    findPlaces(data);
    page.goal = page.row[goal] ?? linkedGoal() ?? firstGoal(data);
    page.moment = atEnd ? last() : Math.min(page.moment, last());
  },
  start() {
    document.addEventListener("click", event => {  // links to goals in any panel, and to the end of the run
      const goal = event.target.dataset ? event.target.dataset.goal : undefined;
      if (goal !== undefined) choose(page.row[Number(goal)]);
      if (event.target.id === "then-end") { page.moment = last(); redraw(); }
    });
    const follow = () => {  // a live page fetches the policy
      if (linkedGoal() !== undefined) choose(linkedGoal()); else if (linkedNumber()) answerUnknown(linkedNumber());
    };
    addEventListener("hashchange", follow);
    follow();
  },
});
