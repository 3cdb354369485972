/* Curves with switches. Curves of one name share a colour; those of single seeds are thin. */

const hiddenNames = new Set();

const curveNames = () => [...new Set(page.data.facts.curves.flatMap(plot => plot.lines.map(line => line.name)))];

function curveStyle(name) {
  const dashes = [[], [6, 4], [2, 3], [8, 3, 2, 3]], i = curveNames().indexOf(name), colour = PALETTE[i % PALETTE.length];
  return {colour: colour === "#000000" ? pageColour("ink") : colour, dash: dashes[Math.floor(i / PALETTE.length) % dashes.length]};
}

function makeCurvePlot(i, {x, y, log}) {
  const plot = newPlot(`curve${i}`, `curve${i}`, 320, x, y, {tools: ZOOM, log: log ? "xy" : ""});
  const rules = addGlyph(plot, "segment", newSource(`marks${i}`, "x0", "x1", "y", "name"),
    {x0: "@x0", y0: "@y", x1: "@x1", y1: "@y", line_color: GREY, line_dash: DASHED});
  const lines = addGlyph(plot, "multi_line", newSource(`lines${i}`, "xs", "ys", "colour", "width", "alpha", "dash", "name", "seed"),
    {xs: "@xs", ys: "@ys", line_color: "@colour", line_width: "@width", line_alpha: "@alpha", line_dash: "@dash"});
  addHover(plot, [["", "@name, @seed"], [x, "$data_x{0.[000]a}"], [y, "$data_y{0.000}"]], {renderers: [lines]});
  addHover(plot, "@name: @y", {renderers: [rules]});
}

function drawSwitches() {
  const box = $("names"), legend = box.querySelector("legend");
  box.replaceChildren(legend, ...curveNames().map(name => {
    const label = document.createElement("label"), tick = document.createElement("input");
    tick.type = "checkbox";
    tick.checked = !hiddenNames.has(name);
    tick.onchange = () => { if (tick.checked) hiddenNames.delete(name); else hiddenNames.add(name); drawCurves(); };
    label.append(tick, swatch(curveStyle(name).colour, name));
    return label;
  }));
}

function drawCurves() {
  const d = page.data, seeds = $("seeds").checked;
  let shown = 0;
  d.facts.curves.forEach((plot, i) => {
    const lines = plot.lines.filter(line => !hiddenNames.has(line.name) && (line.seed === null || seeds));
    shown += lines.length;
    const thin = line => line.seed !== null, styles = lines.map(line => curveStyle(line.name));
    fill(`lines${i}`, {
      xs: lines.map(line => [...d.x.subarray(line.from, line.to)]), ys: lines.map(line => [...d.y.subarray(line.from, line.to)]),
      colour: styles.map(style => style.colour), dash: styles.map(style => style.dash),
      width: lines.map(line => thin(line) ? 1 : 2.5), alpha: lines.map(line => thin(line) ? 0.4 : 1),
      name: lines.map(line => line.name), seed: lines.map(line => thin(line) ? `seed ${line.seed}` : "all seeds"),
    });
    const marks = Object.entries(plot.marks);
    const [from, to] = [Math.min(...plot.lines.map(l => l.from)), Math.max(...plot.lines.map(l => l.to))];
    const xs = [...d.x.subarray(from, to)], ys = [...d.y.subarray(from, to), ...marks.map(([, y]) => y)];
    if (!xs.length) return;
    const low = Math.min(...ys), high = Math.max(...ys), left = Math.min(...xs), right = Math.max(...xs, left + 1e-9);
    const margin = 0.03 * (high - low), isShare = low >= 0 && high <= 1;
    if (plot.log) setRange(plots[`curve${i}`], [left, 1.1 * right], [low / 1.5, 1.5 * high]);
    else setRange(plots[`curve${i}`], [left, right], isShare ? [0, 1.03] : [low - margin, high + margin]);
    fill(`marks${i}`, {x0: marks.map(() => left), x1: marks.map(() => right), y: marks.map(([, y]) => y), name: marks.map(([name]) => name)});
  });
  $("curve-text").textContent = `${shown} of ${d.facts.curves.reduce((n, plot) => n + plot.lines.length, 0)} curves are shown`;
}

addPanel({
  show(data) {
    if (page.previous && data.facts.curves.length !== page.previous.facts.curves.length) location.reload();
    if (!page.previous) data.facts.curves.forEach((plot, i) => makeCurvePlot(i, plot));
  },
  draw() { drawSwitches(); drawCurves(); },
  start() { $("seeds").onchange = drawCurves; },
});
