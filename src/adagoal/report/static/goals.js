/* The table of all goals of an exploration. */

{
  const d = () => page.data, number = (name, digits) => ({head: name, value: g => d()[name][g],
    text: g => Number.isNaN(d()[name][g]) ? "" : digits === undefined ? whole(d()[name][g]) : round(d()[name][g], digits)});
  const goal = {head: "goal", left: true, value: g => d().goal[g], text: named, cell: (cell, g) => cell.append(goalLink(g))};
  const table = new SortedTable($("table"), [goal, number("lower", 3), number("upper", 3), number("error", 3),
    {head: "visits", value: visits, text: g => whole(visits(g))}, {...number("tried"), head: "episodes"}, number("reached"),
    {head: "state", left: true, value: g => STANDS[d().stand[g]], text: g => STANDS[d().stand[g]]}], {
    by: 1, chosen: g => g === page.goal,
    onShow: (all, first, shown, leaf, end) => {
      $("count").textContent = all ? `${first + 1} to ${first + shown} of ${whole(all)}` : "no match";
      $("before").disabled = leaf === 0;
      $("after").disabled = leaf === end;
    }});
  $("search").oninput = () => { table.words = $("search").value; table.page = 0; table.show(); };
  $("before").onclick = () => { table.page -= 1; table.show(); };
  $("after").onclick = () => { table.page += 1; table.show(); };
  addPanel({show(data) { table.rows = [...data.goal.keys()]; }, draw() { table.show(); }});
}
