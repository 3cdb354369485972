"use strict";
Bokeh.set_log_level("warn");
/* What every page shares: the data, the plots, their colours, and tables that can be sorted. */

const $ = id => document.getElementById(id);
const TYPES = {"<f8": Float64Array, "<f4": Float32Array, "<i4": Int32Array, "<u4": Uint32Array, "<u2": Uint16Array,
  "|u1": Uint8Array};
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/* The other side of adagoal/report/packed.py: facts and arrays of a block. */
async function unpack(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const whole = await new Response(stream).arrayBuffer();
  const end = 8 + new DataView(whole).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 8, end - 8)));
  const found = {facts: head.facts, shapes: {}};
  for (const [name, entry] of Object.entries(head.arrays)) {
    found[name] = new TYPES[entry.type](whole, end + entry.at, entry.shape.reduce((a, b) => a * b, 1));
    found.shapes[name] = entry.shape;
  }
  return found;
}

function embedded() {
  const text = atob($("data").textContent), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return unpack(bytes);
}

/* Plots by name, each a model of Bokeh. They are made first, then filled with data, and only then drawn. */
const plots = {}, documents = {}, parts = {};
function makeFigures() {
  for (const [name, item] of Object.entries(JSON.parse($("figures").textContent))) {
    if (!$(name)) continue;
    documents[name] = Bokeh.require("document").Document.from_json(item.doc);
    plots[name] = documents[name].roots()[0];
  }
  follow(matchMedia("(prefers-color-scheme: dark)"));
}

async function drawFigures() {
  for (const [name, made] of Object.entries(documents)) await Bokeh.embed.add_document_standalone(made, $(name));
}

function part(name) {
  for (const made of Object.values(documents)) parts[name] ??= made.get_model_by_name(name);
  return parts[name];
}

const fill = (name, data) => { part(name).data = data; };

/* What a plot shows of its plane. */
function frame(plot, [left, right], [low, high]) {
  Object.assign(plot.x_range, {start: left, end: right, reset_start: left, reset_end: right});
  Object.assign(plot.y_range, {start: low, end: high, reset_start: low, reset_end: high});
}

/* Axes and texts in the colours of the page, light or dark. */
function follow(dark) {
  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim(), line = style.getPropertyValue("--line").trim();
    for (const plot of Object.values(plots)) {
      for (const place of ["left", "right", "above", "below"]) for (const axis of plot[place]) {
        if (!("major_label_text_color" in axis)) continue;
        axis.major_label_text_color = axis.axis_label_text_color = ink;
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = line;
      }
      for (const grid of plot.center) if ("grid_line_color" in grid) grid.grid_line_color = line;
      for (const item of plot.center) if ("label_text_color" in item) {
        item.label_text_color = ink; item.background_fill_alpha = 0; item.border_line_color = line;
      }
      for (const {glyph} of plot.renderers) for (const name of ["line_color", "fill_color"]) {
        const kind = {"#0072b2": "--blue", "#56b4e9": "--blue", "#d55e00": "--orange", "#e69f00": "--orange"}[glyph[name]?.value];
        if (kind) glyph[name] = {value: style.getPropertyValue(kind).trim()};
      }
    }
  };
  paint();
  dark.addEventListener("change", () => { paint(); if (window.repaint) window.repaint(); });
}

const round = (x, digits = 2) => Number.isFinite(x) ? x.toLocaleString("en-GB",
  {minimumFractionDigits: digits, maximumFractionDigits: digits}) : "none yet";
const whole = x => Math.round(x).toLocaleString("en-GB");

/* Viridis, as in the figures of the folder: even in lightness, for colour-blind readers too. */
const RAMP = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
function ramp(share) {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), i = Math.min(Math.floor(place), RAMP.length - 2);
  const channel = k => [RAMP[i], RAMP[i + 1]].map(c => parseInt(c.slice(1 + 2 * k, 3 + 2 * k), 16));
  const mixed = [0, 1, 2].map(k => { const [a, b] = channel(k); return Math.round(a + (b - a) * (place - i)); });
  return "#" + mixed.map(c => c.toString(16).padStart(2, "0")).join("");
}

/* A word of a legend, behind its colour. */
function swatch(colour, text) {
  const item = document.createElement("span"), mark = document.createElement("span");
  mark.className = "swatch";
  mark.style.background = colour;
  item.append(mark, text);
  return item;
}

/* A table that can be searched, sorted and leafed through.
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
    if (this.told) this.told(rows.length, first, shown.length, this.page, last);
  }
}

/* A page that is served asks for news; what it gets is a block like the one it began with. */
function listen(update) {
  if (!document.body.dataset.live) return;
  let stamp = document.body.dataset.stamp || "";
  const say = text => { if ($("live-text").textContent !== text) $("live-text").textContent = text; };
  $("stop").onclick = async () => {
    const answer = await fetch("stop", {method: "POST"});
    say(answer.ok ? "The run will stop after this rollout." : "The run could not be told to stop.");
    $("stop").disabled = answer.ok;
  };
  const ask = async () => {
    try {
      const answer = await fetch(`data?after=${encodeURIComponent(stamp)}`);
      if (answer.status === 200) {
        stamp = answer.headers.get("X-Stamp") || "";
        const data = await unpack(await answer.arrayBuffer());
        $("stop").hidden = !data.facts.running || data.facts.stops === false;
        say(data.facts.running ? "Live: the run goes on, and this page follows it."
          : "The run is not going on at the moment; this page follows it when it does.");
        update(data);
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      say("The run has ended, or its server has. Its report is report.html in its folder.");
    }
    setTimeout(ask, 1500);
  };
  ask();
}
