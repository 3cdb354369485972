/* The page of an experiment: panels of curves with switches, and tables. */

const page = {data: null, hidden: new Set(), seeds: false, tables: []};
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];

const names = () => [...new Set(page.data.facts.panels.flatMap(panel => panel.lines.map(line => line.name)))];

function look(name, known = names()) {
  const i = known.indexOf(name);
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  const colour = PALETTE[i % PALETTE.length];
  return {colour: colour === "#000000" ? ink : colour, dash: DASHES[Math.floor(i / PALETTE.length) % DASHES.length]};
}

function switches() {
  const box = $("names");
  if (!box) return;
  const legend = box.querySelector("legend"), items = names().map(name => {
    const label = document.createElement("label"), tick = document.createElement("input"), mark = document.createElement("span");
    tick.type = "checkbox";
    tick.checked = !page.hidden.has(name);
    tick.onchange = () => { if (tick.checked) page.hidden.delete(name); else page.hidden.add(name); draw(); };
    mark.className = "swatch";
    mark.style.background = look(name).colour;
    label.append(tick, mark, name);
    return label;
  });
  box.replaceChildren(legend, ...items);
}

function draw() {
  const d = page.data;
  let shown = 0;
  d.facts.panels.forEach((panel, i) => {
    const lines = panel.lines.filter(line => !page.hidden.has(line.name) && (line.seed === null || page.seeds));
    shown += lines.length;
    const thin = line => line.seed !== null;
    fill(`lines${i}`, {
      xs: lines.map(line => [...d.x.subarray(line.from, line.to)]), ys: lines.map(line => [...d.y.subarray(line.from, line.to)]),
      colour: lines.map(line => look(line.name).colour), width: lines.map(line => thin(line) ? 1 : 2.5),
      alpha: lines.map(line => thin(line) ? 0.4 : 1), dash: lines.map(line => look(line.name).dash),
      name: lines.map(line => line.name), seed: lines.map(line => thin(line) ? `seed ${line.seed}` : "all seeds"),
    });
    const marks = Object.entries(panel.marks);
    const [from, to] = [Math.min(...panel.lines.map(l => l.from)), Math.max(...panel.lines.map(l => l.to))];
    const xs = [...d.x.subarray(from, to)], ys = [...d.y.subarray(from, to), ...marks.map(([, y]) => y)];
    if (!xs.length) return;
    const low = Math.min(...ys), high = Math.max(...ys), left = Math.min(...xs), right = Math.max(...xs, left + 1e-9);
    if (panel.log) frame(plots[`curve${i}`], [left, 1.1 * right], [low / 1.5, 1.5 * high]);
    else if (low >= 0 && high <= 1) frame(plots[`curve${i}`], [left, right], [0, 1.03]);  // shares
    else frame(plots[`curve${i}`], [left, right], [low - 0.03 * (high - low), high + 0.03 * (high - low)]);
    fill(`marks${i}`, {x0: marks.map(() => left), x1: marks.map(() => right), y: marks.map(([, y]) => y), name: marks.map(([name]) => name)});
  });
  if ($("curve-text")) $("curve-text").textContent = `${shown} of ${d.facts.panels.reduce((n, p) => n + p.lines.length, 0)} curves are shown`;
}

/* Numbers in a table: 1,234 or 1.2e6 or > 5,000 or 3/5; anything else is text. */
function number(text) {
  const found = text.replace(/,/g, "").match(/^[>~ ]*(-?\d+(\.\d+)?(e[+-]?\d+)?)/i);
  return found ? Number(found[1]) : NaN;
}

function makeTables() {
  page.data.facts.tables.forEach((rows, i) => {
    const table = $(`table${i}`);
    if (!table) return;
    if (!page.tables[i]) {
      const heads = rows[0], numeric = heads.map((_, k) => rows.slice(1).some(row => !Number.isNaN(number(row[k]))) && k > 0
        && rows.slice(1).every(row => !/^[a-z]/i.test(row[k]) || /^never|^none/.test(row[k])));
      page.tables[i] = new SortedTable(table, heads.map((head, k) => ({head: head || `column ${k + 1}`, left: !numeric[k],
        value: row => numeric[k] ? number(row[k]) : row[k], text: row => row[k] ?? ""})), {size: 500});
      $(`search${i}`).oninput = () => { page.tables[i].words = $(`search${i}`).value; page.tables[i].show(); };
      page.tables[i].by = -1;
    }
    page.tables[i].rows = rows.slice(1);
    page.tables[i].show();
  });
}

function take(data) {
  page.data = data;
  if (data.facts.panels.some((_, i) => !plots[`curve${i}`])) { location.reload(); return; }
  switches();
  draw();
  makeTables();
  if (typeof more === "function") more(data);  // what a page shows beside its curves
}

async function begin() {
  makeFigures();
  take(await embedded());
  await drawFigures();
  if ($("seeds")) $("seeds").onchange = () => { page.seeds = $("seeds").checked; draw(); };
  window.repaint = () => { switches(); draw(); };
  document.body.dataset.ready = "yes";
  listen(take);
}

begin();
