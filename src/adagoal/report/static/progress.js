/* The largest error of an open goal, and the number of open goals, over the steps of an exploration. */

{
  const error = newPlot("error", "error", 210, "steps", "largest error", {log: "xy"});
  addGlyph(error, "line", newSource("trace-error", "x", "error"), {x: "@x", y: "@error", line_color: BLUE, line_width: 2});
  addLine(error, "epsilon", "width", {line_color: GREY, line_dash: DASHED, line_width: 1});
  addLine(error, "now-error", "height", {line_color: ORANGE});
  addHover(error, [["steps", "@x{0,0}"], ["error", "@error{0.000}"]], {mode: "vline"});
  const open = newPlot("open", "open", 210, "steps", "open goals", {log: "x"});
  addGlyph(open, "step", newSource("trace-open", "x", "open"), {x: "@x", y: "@open", line_color: BLUE, line_width: 2, mode: "after"});
  addLine(open, "now-open", "height", {line_color: ORANGE});
  addHover(open, [["steps", "@x{0,0}"], ["open goals", "@open"]], {mode: "vline"});
}

addPanel({
  show(d) {  // rows of the trace: steps, episodes, largest error, open goals
    const rows = [...Array(d.shapes.trace[0]).keys()], column = (k, of = rows) => of.map(i => d.trace[4 * i + k]);
    const known = rows.filter(i => d.trace[4 * i + 2] > 0 && Number.isFinite(d.trace[4 * i + 2]));
    $("progress-panel").hidden = rows.length < 2;  // charts without a curve are left out
    $("error").hidden = known.length < 2;
    const steps = column(0), errors = column(2, known), open = column(3);
    fill("trace-error", {x: column(0, known), error: errors});
    fill("trace-open", {x: [...steps, d.facts.steps], open: [...open, d.stand.reduce((n, s) => n + (s === OPEN), 0)]});
    part("epsilon").location = d.facts.epsilon;
    const span = [Math.max(steps[0] ?? 1, 1), Math.max(d.facts.steps, 2)];
    const low = 0.7 * Math.min(d.facts.epsilon, ...errors), high = 1.4 * Math.max(d.facts.epsilon, ...errors);
    setRange(plots.error, span, [low, high]);
    // Bokeh would write 20, 30, 40 and 50, which collide in a low chart.
    const digits = high / low < 300 ? [1, 2, 5] : [1], powers = [...Array(25).keys()].map(k => 10 ** (k - 12));
    plots.error.left[0].ticker = new Bokeh.FixedTicker({ticks: powers.flatMap(power => digits.map(digit => digit * power))});
    setRange(plots.open, span, [0, 1.1 * Math.max(...open, 1)]);
  },
  draw() {
    for (const name of ["error", "open"]) part(`now-${name}`).location = Math.max(page.data.moment_steps[page.moment], 1);
  },
});
