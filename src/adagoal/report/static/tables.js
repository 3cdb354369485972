/* The tables of a Markdown text, each with a search field. */

{
  /* Numbers in a table: 1,234 or 1.2e6 or > 5,000 or 3/5; anything else is text. */
  const number = text => {
    const match = text.replace(/,/g, "").match(/^[>~ ]*(-?\d+(\.\d+)?(e[+-]?\d+)?)/i);
    return match ? Number(match[1]) : NaN;
  };
  const tables = [];
  const makeTable = (i, [heads, ...rows]) => {
    const isNumeric = heads.map((_, k) => k > 0 && rows.some(row => !Number.isNaN(number(row[k])))
      && rows.every(row => !/^[a-z]/i.test(row[k]) || /^never|^none/.test(row[k])));
    const table = new SortedTable($(`table${i}`), heads.map((head, k) => ({head: head || `column ${k + 1}`, left: !isNumeric[k],
      value: row => isNumeric[k] ? number(row[k]) : row[k], text: row => row[k] ?? ""})), {size: 500, by: -1});
    $(`search${i}`).oninput = () => { table.words = $(`search${i}`).value; table.show(); };
    return table;
  };
  addPanel({show(data) {
    data.facts.tables.forEach((rows, i) => {
      if (!$(`table${i}`)) return;
      tables[i] ??= makeTable(i, rows);
      tables[i].rows = rows.slice(1);
      tables[i].show();
    });
  }});
}
