/* The chosen goal of an exploration: its policy and path on the map, its interval over time, and episodes that the page plays. */

Object.assign(page, {tries: {}, agent: null, walking: null});
const point = s => [page.data.place[2 * s], -page.data.place[2 * s + 1]];

{
  const interval = newPlot("shrink", "shrink", 240, "steps", "expected steps to the goal", {log: "x"});
  const band = newSource("band", "x", "low", "high");
  addGlyph(interval, "varea", band, {x: "@x", y1: "@low", y2: "@high", fill_color: BLUE, fill_alpha: 0.25});
  addGlyph(interval, "line", band, {x: "@x", y: "@high", line_color: BLUE, line_width: 2});
  addGlyph(interval, "line", band, {x: "@x", y: "@low", line_color: BLUE, line_width: 2, line_dash: DASHED});
  addLine(interval, "now-shrink", "height", {line_color: ORANGE});
  addLine(interval, "radius-shrink", "width", {line_color: GREY, line_dash: DOTTED, line_width: 1});
  addHover(interval, [["steps", "@x{0,0}"], ["between", "@low{0.00} and @high{0.00}"]], {mode: "vline"});

  const tries = newPlot("tries", "tries", 200, "steps of an episode", "episodes");
  const bar = {left: "@left", right: "@right", top: "@top", bottom: 0};
  addGlyph(tries, "quad", newSource("bars", "left", "right", "top"), {...bar, fill_color: GREEN, fill_alpha: 0.7, line_color: null});
  addGlyph(tries, "quad", newSource("certified", "left", "right", "top"), {...bar, fill_color: BLUE, fill_alpha: 0.25, line_color: BLUE});
  addLine(tries, "mean", "height", {line_color: ORANGE, line_width: 3});
}

function drawPolicy() {
  const d = page.data, arrows = {x0: [], y0: [], x1: [], y1: [], angle: []}, resets = {x: [], y: []};
  const policy = page.goal >= 0 && page.model.known ? page.model.policyAt(page.goal, page.moment) : null;
  const path = {x: [], y: []};
  const {x_range: across, y_range: up, height} = mapPlot;  // pixels per unit differ on the two axes of a graph
  const ratio = (height / (up.end - up.start)) / (($("map-plot").clientWidth || height) / (across.end - across.start));
  const aim = new Set(policy ? targets(page.goal) : []), walk = policy ? page.model.path(policy, aim) : [];
  const along = new Set(walk), many = page.places.length > 600;
  const shown = policy && !d.facts.grid ? page.model.reachable(policy) : null;
  for (const place of policy ? page.places : []) {
    const s = place.states.find(t => along.has(t)) ?? place.states[0];
    if (aim.has(s) || (many && !along.has(s)) || d.visits[s] === 0 || (shown && !shown.has(s))) continue;
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
  describePath(policy, walk);
}

function describePath(policy, walk) {
  const d = page.data, end = page.moment === last();
  if (page.goal < 0) { $("path-text").textContent = ""; return; }
  if (!page.model.known) { $("path-text").textContent = "This run has no empirical model, so the page cannot show a path."; return; }
  if (!policy && !end) {
    $("path-text").textContent = d.moment_policy ? "At this time the run had no policy with an upper bound for this goal."
      : "This run has no policies of earlier times. The arrows of the end are shown at the end of the slider.";
    return;
  }
  if (!policy) {
    $("path-text").textContent = d.policy_row[page.goal] < 0 && d.stand[page.goal] !== BEYOND
      ? `The policy of this goal is not in this file. Open the run with: ${$("watch").textContent}`
      : `Goals ${d.facts.measure.beyond} have no policy.`;
    return;
  }
  const names = walk.slice(0, 12).map(label).join(" → ") + (walk.length > 12 ? " → …" : "");
  const arrives = targets(page.goal).includes(walk[walk.length - 1]);
  $("path-text").textContent = `Most likely path${end ? "" : " of the policy of this time, on the transitions of the whole run"} (${plural(walk.length - 1, "step")}${arrives ? "" : ", then in a circle or to an untried pair"}): ${names}`;
}

function drawGoal() {
  const d = page.data, g = page.goal;
  if (g < 0) return;
  const what = (d.facts.within ? ", " : " ") + d.facts.measure.quantity;
  const now = at(g, page.moment), end = page.moment === last();
  $("goal-title").textContent = `Goal ${named(g)}`;
  $("python-code").textContent = pythonCode();
  $("copy-answer").textContent = "";
  $("interval-text").textContent = now.stand === UNSEEN ? "not seen yet at this time"
    : Number.isFinite(now.upper) ? `${round(now.lower, 3)} to ${round(now.upper, 3)}${what}`
    : `at least ${round(now.lower, 3)}${what}; no upper bound yet`;
  plots.shrink.left[0].axis_label = d.facts.within ? d.facts.measure.quantity : "expected steps to the goal";
  const known = !Number.isFinite(d.error[g]) ? "" : `, error at most ${round(d.error[g], 3)}`;
  $("goal-text").textContent = `${STANDS[now.stand]}${end ? known : ""}; chosen in ${plural(now.chosen, "episode")}`
    + (end ? `, reached in ${whole(d.reached[g])}; ${plural(visits(g), "visit")}` : " until then");
  const moments = [...Array(last() + 1).keys()].filter(f => at(g, f).stand !== UNSEEN);
  const top = Math.max((d.facts.within ? 1 : 2) * d.facts.measure.top, Number.isFinite(d.upper[g]) ? d.upper[g] : 0);
  const band = {x: [], low: [], high: []};
  moments.forEach((f, i) => {  // what was known holds until the next moment
    for (const t of i + 1 < moments.length ? [f, moments[i + 1]] : [f]) {
      band.x.push(Math.max(d.moment_steps[t], 1));
      band.low.push(at(g, f).lower);
      band.high.push(Math.min(at(g, f).upper, top));
    }
  });
  fill("band", band);
  // A chart of one moment, or of no bounds at all, would be empty.
  $("shrink-part").hidden = new Set(band.x).size < 2 || moments.every(f => at(g, f).lower === 0 && at(g, f).upper === Infinity);
  const highest = Math.max(...moments.map(f => at(g, f).upper).filter(Number.isFinite), d.facts.measure.threshold);
  setRange(plots.shrink, [Math.max(d.moment_steps[moments[0]] ?? 1, 1), Math.max(d.facts.steps, 2)], [0, 1.1 * Math.min(highest, top)]);
  part("now-shrink").location = Math.max(d.moment_steps[page.moment], 1);
  part("radius-shrink").location = d.facts.measure.threshold;
}

const labelOf = g => named(g).slice(String(page.data.goal[g]).length).trim();
const squeeze = text => text.toLowerCase().replaceAll(/\s/g, "");

/* The goal that is meant: its number, its name, or a part of its name; undefined if there is none. */
function findGoal(text) {
  const goals = [...page.data.goal.keys()], words = squeeze(text);
  return goals.find(g => String(page.data.goal[g]) === words) ?? goals.find(g => squeeze(labelOf(g)) === words)
    ?? goals.find(g => squeeze(named(g)).includes(words));
}

/* Letters to insert, remove or replace until one text is the other. */
function editDistance(a, b) {
  let row = [...Array(b.length + 1).keys()];
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] !== b[j - 1]));
    row = next;
  }
  return row[b.length];
}

/* Say that a text names no goal, with links to those whose names are nearest. */
function answerUnknown(text) {
  const words = squeeze(text).slice(0, 60), near = g => editDistance(words, squeeze(labelOf(g) || named(g)).slice(0, 60));
  const close = [...page.data.goal.keys()].map(g => [near(g), g]).filter(([far]) => far <= Math.max(2, words.length / 2));
  const links = close.sort((a, b) => a[0] - b[0]).slice(0, 3).flatMap(([, g], i) => [i ? " or " : " Did you mean ", goalLink(g)]);
  $("search-answer").replaceChildren(`No goal is called “${text}”.`, ...links, links.length ? "?" : "");
}

function searchGoal() {
  const text = $("goal-search").value.trim(), found = text ? findGoal(text) : undefined;
  $("search-answer").textContent = "";
  if (found !== undefined) choose(found); else if (text) answerUnknown(text);
}

/* Python that loads the run and plays the policy of the chosen goal. */
function pythonCode() {
  const d = page.data, g = page.goal, goal = d.goal[g], run = $("python-code").dataset.run;
  const lines = ["import adagoal", "", run ? `result = adagoal.load(${run})` : "# result = adagoal.explore(...)",
    `print(result.certificate(${goal}))  # goal ${named(g)}: ${d.facts.measure.quantity}, at least and at most`];
  if (d.stand[g] !== BEYOND) lines.push(`policy = result.policy(${goal})  # policy.act(observation) returns an action`,
    `[trial] = adagoal.play(${run || "result"}, goals=[${goal}], episodes=100)`, "print(trial.mean, trial.interval, trial.agrees)");
  return lines.join("\n") + "\n";
}

async function copyPython() {
  let answer = "Copied.";
  try { await navigator.clipboard.writeText($("python-code").textContent); } catch {  // a frame may not write to the clipboard
    $("python").open = true;
    getSelection().selectAllChildren($("python-code"));
    answer = "Selected: copy it with Ctrl+C.";
  }
  $("copy-answer").textContent = answer;
}

/* Steps after which the page ends an episode. */
const maxSteps = () => page.data.facts.within ?? Math.ceil(50 * page.data.facts.measure.top) + 1000;

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
  const aim = new Set(targets(page.goal)), policy = page.model.policy(page.goal);
  for (let i = 0; i < times; i++) {
    let steps = -1, state = -1;
    for (state of page.model.episode(policy, aim, maxSteps())) steps += 1;
    note(steps, aim.has(state));
  }
  drawTries();
}

function playOne() {
  page.moment = last();  // the policy of the end plays
  redraw();
  const aim = new Set(targets(page.goal)), walk = [...page.model.episode(page.model.policy(page.goal), aim, maxSteps())];
  const finish = () => { stopAgent(); note(walk.length - 1, aim.has(walk[walk.length - 1])); redraw(); };
  stopAgent();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) { finish(); return; }
  let t = 0;
  page.walking = setInterval(() => {
    if (t >= walk.length) { finish(); return; }
    page.agent = walk[t];
    $("try-text").textContent = `step ${t}: ${label(walk[t])}`;
    t += 1;
    drawMarks();
  }, Math.max(20, Math.min(150, 4000 / walk.length)));
}

function drawTries() {
  const d = page.data, g = page.goal, able = g >= 0 && page.model.known && page.model.policy(g) !== null;
  const tries = page.tries[g] || {steps: [], lost: 0}, n = tries.steps.length;
  for (const id of ["try-one", "try-many"]) $(id).disabled = !able;
  $("try-clear").disabled = n + tries.lost === 0;
  $("tries").closest("figure").hidden = !able;
  const mean = tries.steps.reduce((a, b) => a + b, 0) / n;
  const spread = Math.sqrt(tries.steps.reduce((a, b) => a + (b - mean) ** 2, 0) / Math.max(n - 1, 1) / n);
  if (g < 0) return;
  const claim = `${d.facts.guarantee ? "certified" : "estimated"}: ${round(d.lower[g])} to ${round(d.upper[g])}`;
  if (d.facts.within) {  // one attempt each: what is measured is the share of those that arrive
    const all = n + tries.lost;
    const share = `${whole(n)} of ${plural(all, "episode")} reached it (${round(n / all, 3)}) on the observed model; ${claim}`;
    $("try-text").textContent = all ? share : able ? `Nothing measured yet; ${claim}.` : "This goal has no policy in the page.";
  }
  const lost = tries.lost ? `; ${whole(tries.lost)} came to an untried pair or took too long` : "";
  const measured = spread > 0 ? `${round(mean)} ± ${round(1.96 * spread)} steps over ${plural(n, "episode")}`
    : `${plural(mean, "step")} in ${n === 1 ? "one episode" : `each of ${plural(n, "episode")}`}`;
  if (!d.facts.within) $("try-text").textContent = n ? `Measured: ${measured} on the observed model; ${claim}${lost}` : able
    ? `Nothing measured yet; ${claim}${lost}. The policy plays on the model that the run has observed.`
    : "This goal has no policy in the page.";
  const top = Math.max(...tries.steps, 1), size = Math.max(1, Math.ceil(top / 40)), bins = {};
  for (const steps of tries.steps) { const k = Math.floor(steps / size); bins[k] = (bins[k] || 0) + 1; }
  const keys = Object.keys(bins).map(Number), most = Math.max(...Object.values(bins), 1);
  fill("bars", {left: keys.map(k => k * size - size / 2), right: keys.map(k => (k + 1) * size - size / 2),
    top: keys.map(k => bins[k])});
  const bounded = Number.isFinite(d.upper[g]);
  const band = {left: [d.lower[g]], right: [bounded ? d.upper[g] : Math.max(top, d.lower[g])], top: [most]};
  fill("certified", d.facts.within ? {left: [], right: [], top: []} : band);
  part("mean").location = n && !d.facts.within ? mean : null;
  const claimed = d.facts.within ? [0, d.facts.within] : [d.lower[g], bounded ? d.upper[g] : d.lower[g] + 1];
  const ends = [...tries.steps, ...claimed], low = Math.min(...ends), high = Math.max(...ends);
  setRange(plots.tries, [Math.max(low - 1 - size, -1), high + 1 + size], [0, 1.1 * most]);
}

addPanel({
  draw() { drawPolicy(); drawGoal(); drawTries(); },
  start() {
    if (page.goal >= 0 && page.model.known && page.model.policy(page.goal)) playMany(100);  // the first screen shows a measurement
    $("try-one").onclick = playOne;
    $("try-many").onclick = () => playMany(100);
    $("try-clear").onclick = () => { delete page.tries[page.goal]; drawTries(); };
    $("goal-search").oninput = searchGoal;
    $("copy-python").onclick = copyPython;
  },
});
