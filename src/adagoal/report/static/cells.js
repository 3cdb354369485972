/* The certificate of a training run: cells of the goal space, coloured by their verdict. */

{
  const verdicts = {certified: BLUE, refuted: ORANGE, open: "#999999"};
  const plot = newPlot("cells", "cells-plot", 420, "goal coordinate 0", "goal coordinate 1", {tools: ZOOM});
  addGlyph(plot, "quad", newSource("verdicts", "left", "right", "bottom", "top", "fill", "text"), {left: "@left", right: "@right",
    top: "@top", bottom: "@bottom", fill_color: "@fill", fill_alpha: 0.8, line_color: "#ffffff"});
  addHover(plot, "@text");
  addPanel({show(data) {
    const cells = data.facts.cells, second = cells[0].low.length > 1 ? 1 : 0, ends = (end, k) => cells.map(cell => cell[end][k]);
    fill("verdicts", {left: ends("low", 0), right: ends("high", 0), bottom: ends("low", second), top: ends("high", second),
      fill: cells.map(cell => verdicts[cell.verdict]),
      text: cells.map(cell => `${cell.verdict}: reached ${cell.reached} of ${cell.rollouts}`)});
    const span = k => [Math.min(...ends("low", k)), Math.max(...ends("high", k))];
    setRange(plot, span(0), span(second));
    $("cells-text").replaceChildren(...Object.entries(verdicts).map(([verdict, colour]) => {
      const share = cells.filter(cell => cell.verdict === verdict).reduce((sum, cell) => sum + cell.share, 0);
      return swatch(colour, `${verdict} ${Math.round(100 * share)}%`);
    }));
  }});
}
