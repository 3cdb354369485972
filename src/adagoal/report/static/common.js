"use strict";
Bokeh.set_log_level("warn");
/* What every page shares: data, panels, plots, colours, and tables that can be sorted.

   The script of a panel calls addPanel({start, show, draw}). All three functions are optional:
     show(data)  take new data: once at the beginning, and whenever a live page receives some
     draw()      draw what the user has chosen: after show, and after every redraw()
     start()     connect buttons, once, after the first drawing
   The element $("NAME") is that of the panel. data.NAME is an array, data.shapes.NAME its shape, and data.facts.NAME any other value of the panel's function. */

const page = {data: null};
const panels = [];
const addPanel = panel => panels.push(panel);
const redraw = () => { for (const panel of panels) panel.draw?.(); };

function take(data) {
  const first = page.data === null;
  if (!first && String(data.facts.panels) !== String(page.data.facts.panels)) { location.reload(); return; }
  if (!first) for (const [name, html] of Object.entries(data.facts.html)) $(name).innerHTML = html;
  page.previous = page.data;
  page.data = data;
  for (const panel of panels) panel.show?.(data);
  redraw();
}

async function begin() {
  take(await unpack(embeddedBytes("data")));
  followColours(matchMedia("(prefers-color-scheme: dark)"));
  for (const [plot, element] of drawn) {
    const made = new (Bokeh.require("document").Document)();
    made.add_root(plot);
    await Bokeh.embed.add_document_standalone(made, $(element));
  }
  for (const panel of panels) panel.start?.();
  document.body.dataset.ready = "yes";
  listen();
}

/* Reads a block of html_page.pack_data_block. */
async function unpack(bytes) {
  const types = {"<f8": Float64Array, "<f4": Float32Array, "<i4": Int32Array, "<u4": Uint32Array, "<u2": Uint16Array, "|u1": Uint8Array};
  const whole = await inflate(bytes).arrayBuffer();
  const end = 8 + new DataView(whole).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 8, end - 8)));
  const data = {facts: head.facts, shapes: {}};
  for (const [name, entry] of Object.entries(head.arrays)) {
    data[name] = new types[entry.type](whole, end + entry.at, entry.shape.reduce((a, b) => a * b, 1));
    data.shapes[name] = entry.shape;
  }
  return data;
}

/* Plots, and by name their sources, glyphs and lines. A plot is made empty and filled before it is drawn. */
const plots = {}, parts = {}, drawn = [];
const part = name => parts[name];
const fill = (name, data) => { parts[name].data = data; };
const ZOOM = "pan,box_zoom,wheel_zoom,reset";
const DASHED = [6], DOTTED = [2, 4];  // the named patterns of Bokeh are hard to tell apart
const BLUE = "#0072b2", ORANGE = "#d55e00", GREEN = "#009e73", GREY = "#8a8f98";  // Okabe and Ito: safe for colour-blind readers
const PALETTE = [BLUE, ORANGE, GREEN, "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

function newPlot(name, element, height, xLabel, yLabel, {tools = "", log = "", ...options} = {}) {
  const axis = letter => log.includes(letter) ? "log" : "linear";
  const plot = plots[name] = new Bokeh.Plotting.Figure({
    name, height, tools, x_axis_label: xLabel, y_axis_label: yLabel, x_axis_type: axis("x"), y_axis_type: axis("y"),
    x_range: [1, 100], y_range: [1, 100], sizing_mode: "stretch_width", toolbar_location: tools ? "above" : null,
    background_fill_color: null, border_fill_color: null, outline_line_color: null, min_border_left: 10, min_border_right: 10,
    ...options});
  plot.toolbar.logo = null;
  for (const one of plot.axes) one.ticker.desired_num_ticks = 4;
  // 500k and 1m: within one decade the powers of a log axis would be written as 5.000e+5, and collide.
  if (log.includes("x")) plot.below[0].formatter = new Bokeh.NumeralTickFormatter({format: "0a"});
  drawn.push([plot, element]);
  return plot;
}

function newSource(name, ...columns) {
  return parts[name] = new Bokeh.ColumnDataSource({data: Object.fromEntries(columns.map(column => [column, []]))});
}

/* Draw a glyph: a value "@column" stands for a column of the source. */
function addGlyph(plot, kind, source, options) {
  const field = value => typeof value === "string" && value[0] === "@" ? {field: value.slice(1)} : Array.isArray(value) ? {value} : value;
  const values = Object.entries(options).map(([key, value]) => [key, field(value)]);
  const glyph = plot[kind]({...Object.fromEntries(values), source});
  if (options.name) parts[options.name] = glyph;
  return glyph;
}

function addLine(plot, name, dimension, options) {
  parts[name] = new Bokeh.Span({dimension, line_width: 2, ...options});
  plot.add_layout(parts[name]);
}

const addHover = (plot, tooltips, options = {}) => plot.add_tools(new Bokeh.HoverTool({tooltips, ...options}));

/* The part of the plane that a plot shows. */
function setRange(plot, [left, right], [low, high]) {
  Object.assign(plot.x_range, {start: left, end: right, reset_start: left, reset_end: right});
  Object.assign(plot.y_range, {start: low, end: high, reset_start: low, reset_end: high});
}

const pageColour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/* Axes and texts in the colours of the page, light or dark. */
function followColours(dark) {
  const paint = () => {
    const ink = pageColour("ink"), line = pageColour("line");
    for (const plot of Object.values(plots)) {
      for (const axis of plot.axes) {
        axis.major_label_text_color = axis.axis_label_text_color = ink;
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = line;
      }
      for (const grid of plot.grids) grid.grid_line_color = line;
      for (const {glyph} of plot.renderers) for (const name of ["line_color", "fill_color"]) {
        const kind = {"#0072b2": "blue", "#56b4e9": "blue", "#d55e00": "orange", "#e69f00": "orange"}[glyph[name]?.value];
        if (kind) glyph[name] = {value: pageColour(kind)};
      }
    }
  };
  paint();
  dark.addEventListener("change", () => { paint(); redraw(); });
}

const round = (x, digits = 2) => Number.isFinite(x) ? x.toLocaleString("en-GB",
  {minimumFractionDigits: digits, maximumFractionDigits: digits}) : "none yet";
const whole = x => Math.round(x).toLocaleString("en-GB");
const plural = (n, noun) => `${whole(n)} ${noun}${n === 1 ? "" : "s"}`;

/* Viridis: its lightness grows evenly, so colour-blind readers see the same order. */
const RAMP = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
function ramp(share) {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), i = Math.min(Math.floor(place), RAMP.length - 2);
  const channel = k => [RAMP[i], RAMP[i + 1]].map(c => parseInt(c.slice(1 + 2 * k, 3 + 2 * k), 16));
  const mixed = [0, 1, 2].map(k => { const [a, b] = channel(k); return Math.round(a + (b - a) * (place - i)); });
  return "#" + mixed.map(c => c.toString(16).padStart(2, "0")).join("");
}

function rampBar() {
  const bar = document.createElement("span");
  bar.className = "ramp";
  bar.style.background = `linear-gradient(to right, ${RAMP.join(",")})`;
  return bar;
}

/* An entry of a legend: a square in its colour, then text. */
function swatch(colour, text) {
  const item = document.createElement("span"), mark = document.createElement("span");
  mark.className = "swatch";
  mark.style.background = colour;
  item.append(mark, text);
  return item;
}

/* A button that starts and pauses a film: advance() shows the next frame and returns false after the last one. */
function playButton(id, milliseconds, rewind, advance) {
  let clock = null;
  $(id).onclick = () => {
    if (clock) { clearInterval(clock); clock = null; }
    else { rewind(); clock = setInterval(() => { if (advance() === false) $(id).onclick(); }, milliseconds); }
    $(id).textContent = clock ? "Pause" : "Play";
    $(id).setAttribute("aria-pressed", String(Boolean(clock)));
  };
}

/* A table that can be searched, sorted and turned page by page.
   columns: [{head, value: row -> number or text, text: row -> text, left}], rows: array of anything. */
class SortedTable {
  constructor(table, columns, options = {}) {
    Object.assign(this, {table, columns, rows: [], by: 0, up: true, page: 0, size: 50, words: ""}, options);
    const line = table.tHead.insertRow();
    columns.forEach((column, i) => {
      const head = document.createElement("th"), button = document.createElement("button");
      head.scope = "col";
      if (column.left) head.className = "left";
      button.type = "button";
      button.textContent = column.head;
      button.onclick = () => { this.up = this.by === i ? !this.up : true; this.by = i; this.page = 0; this.show(); };
      head.append(button);
      line.append(head);
    });
  }
  found() {
    const words = this.words.toLowerCase();
    return this.rows.filter(row => !words || this.columns.some(c => String(c.text(row)).toLowerCase().includes(words)));
  }
  show() {
    const value = this.by < 0 ? () => 0 : this.columns[this.by].value, sign = this.up ? 1 : -1;  // -1: as they came
    const number = x => Number.isNaN(x) ? Infinity : x;
    const rows = this.found().map(row => [value(row), row]).sort(([a], [b]) =>
      sign * (typeof a === "string" ? a.localeCompare(b) : (number(a) > number(b)) - (number(a) < number(b))));
    const last = Math.max(Math.ceil(rows.length / this.size) - 1, 0);
    this.page = Math.min(Math.max(this.page, 0), last);
    const first = this.page * this.size, shown = rows.slice(first, first + this.size);
    [...this.table.tHead.rows[0].cells].forEach((cell, i) => {
      if (i === this.by) cell.setAttribute("aria-sort", this.up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
    const body = document.createElement("tbody");
    for (const [, row] of shown) {
      const line = body.insertRow();
      this.columns.forEach(column => {
        const cell = line.insertCell();
        if (column.left) cell.className = "left";
        if (column.cell) column.cell(cell, row); else cell.textContent = column.text(row);
      });
      if (this.chosen && this.chosen(row)) line.setAttribute("aria-selected", "true");
    }
    this.table.tBodies[0].replaceWith(body);
    if (this.onShow) this.onShow(rows.length, first, shown.length, this.page, last);
  }
}

/* A live page asks its server for new data; the answer is a block like the one in the page. */
function listen() {
  if (!document.body.dataset.live) return;
  let stamp = "";
  const say = text => { if ($("live-text").textContent !== text) $("live-text").textContent = text; };
  $("stop").onclick = async () => {
    const answer = await fetch("stop", {method: "POST"});
    say(answer.ok ? "The run will stop after this rollout." : "The request to stop failed.");
    $("stop").disabled = answer.ok;
  };
  const ask = async () => {
    try {
      const answer = await fetch(`data?after=${encodeURIComponent(stamp)}`);
      if (answer.status === 200) {
        stamp = answer.headers.get("X-Stamp") || "";
        const data = await unpack(await answer.arrayBuffer());
        $("stop").hidden = !data.facts.running || data.facts.stops === false;
        say(data.facts.running ? "Live: this page follows the run."
          : "The run is not active. This page follows it when it continues.");
        take(data);
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;  // fetch raises TypeError if there is no answer
      say("The run or its server has ended. The report is report.html in the run folder.");
    }
    setTimeout(ask, 1500);
  };
  ask();
}
