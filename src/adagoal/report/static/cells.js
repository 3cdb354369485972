/* A certificate: cells of goals or starts, coloured by their verdict. Two coordinates are shown, or the bounds of one. */

{
  const colours = {certified: BLUE, refuted: ORANGE, open: "#999999", better: BLUE, equal: GREEN, worse: ORANGE};
  const plot = newPlot("cells", "cells-plot", 420, "", "", {tools: ZOOM});
  addGlyph(plot, "quad", newSource("verdicts", "left", "right", "bottom", "top", "fill", "alpha", "text"), {left: "@left",
    right: "@right", top: "@top", bottom: "@bottom", fill_color: "@fill", fill_alpha: "@alpha", line_color: "#ffffff"});
  addHover(plot, "@text");
  const counts = (cell, least) => least < 0 ? `of ${cell.rollouts} rollouts only the first policy succeeded in ${cell.successes}, only the other in ${cell.failures}`
    : `${cell.successes} of ${cell.rollouts} rollouts succeeded`;
  const percent = share => `${Math.round(100 * share)}%`;
  addPanel({
    show({facts: {cells, variables, verdicts}}) {
      const choices = name => variables.map((text, value) => Object.assign(new Option(text, value), {selected: value === name}));
      $("cells-x").replaceChildren(...choices(0));
      $("cells-y").replaceChildren(...choices(Math.min(1, variables.length - 1)));
      $("cells-axes").hidden = variables.length < 3;
      $("cells-text").replaceChildren(...verdicts.map(verdict => {
        const share = cells.filter(cell => cell.verdict === verdict).reduce((sum, cell) => sum + cell.share, 0);
        return swatch(colours[verdict], `${verdict} ${percent(share)}`);
      }));
    },
    draw() {
      const {cells, variables, measure, least} = page.data.facts, x = Number($("cells-x").value), y = Number($("cells-y").value);
      const ends = (end, k) => cells.map(cell => cell[end][k]), bounds = [cells.map(c => c.at_least ?? 0), cells.map(c => c.at_most ?? 1)];
      const [bottom, top] = x === y ? bounds : [ends("low", y), ends("high", y)];
      // cells of other coordinates lie behind each other
      fill("verdicts", {left: ends("low", x), right: ends("high", x), bottom, top, fill: cells.map(cell => colours[cell.verdict]),
        alpha: cells.map(() => variables.length > 2 ? 0.35 : 0.8),
        text: cells.map(cell => `${cell.verdict}: ${counts(cell, least)}`
          + (cell.at_least === undefined ? "" : `, ${measure} ${percent(cell.at_least)} to ${percent(cell.at_most)}`))});
      plot.below[0].axis_label = variables[x];
      plot.left[0].axis_label = x === y ? measure : variables[y];
      setRange(plot, [Math.min(...ends("low", x)), Math.max(...ends("high", x))], x === y ? [least, 1] : [Math.min(...bottom), Math.max(...top)]);
    },
    start() { for (const axis of ["cells-x", "cells-y"]) $(axis).addEventListener("change", redraw); },
  });
}
