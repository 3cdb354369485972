/* A certificate: cells of goals or starts, coloured by their verdict. Two coordinates are shown, or the bounds of one. */

{
  const verdicts = {certified: BLUE, refuted: ORANGE, open: "#999999"};
  const plot = newPlot("cells", "cells-plot", 420, "", "", {tools: ZOOM});
  addGlyph(plot, "quad", newSource("verdicts", "left", "right", "bottom", "top", "fill", "alpha", "text"), {left: "@left",
    right: "@right", top: "@top", bottom: "@bottom", fill_color: "@fill", fill_alpha: "@alpha", line_color: "#ffffff"});
  addHover(plot, "@text");
  const percent = share => `${Math.round(100 * share)}%`;
  addPanel({
    show({facts: {cells, variables}}) {
      const choices = name => variables.map((text, value) => Object.assign(new Option(text, value), {selected: value === name}));
      $("cells-x").replaceChildren(...choices(0));
      $("cells-y").replaceChildren(...choices(Math.min(1, variables.length - 1)));
      $("cells-axes").hidden = variables.length < 3;
      $("cells-text").replaceChildren(...Object.entries(verdicts).map(([verdict, colour]) => {
        const share = cells.filter(cell => cell.verdict === verdict).reduce((sum, cell) => sum + cell.share, 0);
        return swatch(colour, `${verdict} ${percent(share)}`);
      }));
    },
    draw() {
      const {cells, variables} = page.data.facts, x = Number($("cells-x").value), y = Number($("cells-y").value);
      const ends = (end, k) => cells.map(cell => cell[end][k]), bounds = [cells.map(c => c.at_least ?? 0), cells.map(c => c.at_most ?? 1)];
      const [bottom, top] = x === y ? bounds : [ends("low", y), ends("high", y)];
      // cells of other coordinates lie behind each other
      fill("verdicts", {left: ends("low", x), right: ends("high", x), bottom, top, fill: cells.map(cell => verdicts[cell.verdict]),
        alpha: cells.map(() => variables.length > 2 ? 0.35 : 0.8),
        text: cells.map(cell => `${cell.verdict}: ${cell.successes} of ${cell.rollouts} rollouts succeeded`
          + (cell.at_least === undefined ? "" : `, probability ${percent(cell.at_least)} to ${percent(cell.at_most)}`))});
      plot.below[0].axis_label = variables[x];
      plot.left[0].axis_label = x === y ? "probability of success" : variables[y];
      setRange(plot, [Math.min(...ends("low", x)), Math.max(...ends("high", x))], x === y ? [0, 1] : [Math.min(...bottom), Math.max(...top)]);
    },
    start() { for (const axis of ["cells-x", "cells-y"]) $(axis).addEventListener("change", redraw); },
  });
}
