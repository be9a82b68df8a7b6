// A line chart: SVG drawn at the size at which it is shown, read by mouse, finger or arrow keys, its
// figures as a table below. To a screen reader it is a slider along the steps that says the figures.

import { dot, h, number, replace, setText, svg } from "./dom.js";
import { nearest, range, smooth_width, smoothed, thinned, ticks, whole_ticks } from "./scale.js";

const DASHES = [null, "6 3", "2 3", "8 3 2 3", "12 4", "4 2 1 2"];
const EDGE = { top: 16, right: 10, bottom: 20, left: 44 };
const ROWS = 60;

const all = new Set();
let at_step = null; // what is pointed at, in all charts at once

function point_at(step) {
  if (step === at_step) return;
  at_step = step;
  for (const chart of all) chart.drawCursor();
}

export class Chart {
  /** `floor`: the axis begins there or below. `axis`: what a step is called. */
  constructor({ title, floor = null, height = 150, digits = 3, least = 1e-9 }) {
    Object.assign(this, { title, floor, height, digits, least });
    this.steps = [];
    this.lines = [];
    this.marks = [];
    this.axis = "step";
    this.now = h("b", { class: "now" });
    this.legend = h("div", { class: "legend" });
    this.readout = h("p", { class: "readout" });
    this.plot = h("div", {
      class: "plot", tabindex: "0", role: "slider", "aria-label": `${title}, by step`,
      "aria-orientation": "horizontal", "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0",
      "aria-valuetext": "no figures yet",
      on: {
        keydown: (event) => this.key(event),
        pointermove: (event) => this.point(event),
        pointerdown: (event) => this.point(event),
        pointerleave: () => document.activeElement !== this.plot && point_at(null),
        blur: () => point_at(null),
      },
    });
    this.table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, figures` });
    this.details = h("details", { on: { toggle: () => this.fillTable() } }, h("summary", {}, "Figures"), this.table);
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, h("span", { class: "title" }, title), this.now),
      this.legend, this.plot, this.readout, this.details);
    new ResizeObserver(() => this.draw()).observe(this.plot);
    all.add(this);
  }

  /** No longer on the page. */
  remove() {
    all.delete(this);
    this.element.remove();
  }

  /** lines: [{name, colour, values}], values beside steps, null where there is none.
   *  marks: [{step, label, text, kind}]. */
  update({ steps, lines, marks = [], smooth = false, axis = "step" }) {
    Object.assign(this, { steps, lines, marks, smooth, axis });
    this.drawn = lines.map((line) => ({
      ...line, main: smooth ? smoothed(line.values, smooth_width(steps.length)) : line.values,
    }));
    const last = lines.length === 1 ? lines[0].values.findLast((value) => value !== null) : undefined;
    setText(this.now, lines.length === 1 ? number(last, this.digits) : "");
    this.drawLegend();
    this.draw();
    if (this.details.open) this.fillTable();
  }

  drawLegend() {
    const key = JSON.stringify(this.lines.map((line) => [line.name, line.colour]));
    if (key === this.legendKey) return;
    this.legendKey = key;
    if (this.lines.length < 2) return replace(this.legend);
    replace(this.legend, this.lines.map((line, i) => h("span", {},
      svg("svg", { viewBox: "0 0 22 6", width: "22", height: "6", "aria-hidden": "true" },
        svg("line", { x1: 0, x2: 22, y1: 3, y2: 3, class: "line", stroke: `var(--${line.colour})`, "stroke-dasharray": DASHES[i % DASHES.length] })),
      ` ${line.name}`)));
  }

  draw() {
    const width = Math.round(this.plot.clientWidth);
    if (!width) return; // not on the page, or hidden
    const steps = this.steps;
    const domain = steps.length ? range(this.lines.flatMap((line) => (this.smooth ? this.drawn.find((d) => d.name === line.name).main.concat(line.values) : line.values)), this) : null;
    if (!domain) {
      this.x = null;
      replace(this.plot, h("p", { class: "empty" }, "no figures yet"));
      return;
    }
    const ahead = this.marks.map((mark) => mark.step).filter((step) => step > steps.at(-1) && step <= steps.at(-1) + Math.max(2, steps.length * 0.05));
    const first = steps[0];
    const last = Math.max(steps.at(-1), ...ahead, first + 1);
    const inner = { left: EDGE.left, right: width - EDGE.right, top: EDGE.top, bottom: this.height - EDGE.bottom };
    this.inner = inner;
    this.x = (step) => inner.left + ((step - first) / (last - first)) * (inner.right - inner.left);
    this.y = (value) => inner.bottom - ((value - domain[0]) / (domain[1] - domain[0])) * (inner.bottom - inner.top);
    this.back = (x) => first + ((x - inner.left) / (inner.right - inner.left)) * (last - first);
    this.cursor = svg("g", { class: "cursor" });
    replace(this.plot, svg("svg", { viewBox: `0 0 ${width} ${this.height}`, width, height: this.height, "aria-hidden": "true" },
      this.grid(domain, first, last), this.drawMarks(first, last), this.drawLines(width), this.cursor));
    this.drawCursor();
  }

  grid(domain, first, last) {
    const { left, right, bottom } = this.inner;
    const narrow = right - left < 260;
    return svg("g", { class: "grid" },
      ticks(...domain, 4).map((value) => [
        svg("line", { x1: left, x2: right, y1: this.y(value), y2: this.y(value) }),
        svg("text", { x: left - 6, y: this.y(value) + 3.5, "text-anchor": "end" }, number(value, 4)),
      ]),
      whole_ticks(first, last, narrow ? 3 : 6).map((step) =>
        svg("text", { x: this.x(step), y: bottom + 15, "text-anchor": "middle" }, step.toLocaleString("en"))));
  }

  drawMarks(first, last) {
    const { top, bottom, right } = this.inner;
    let free = -Infinity; // where the next label has room
    return svg("g", { class: "marks" },
      [...this.marks].sort((a, b) => a.step - b.step).filter((mark) => mark.step >= first && mark.step <= last).map((mark) => {
        const x = this.x(mark.step);
        const room = x >= free;
        if (room) free = x + 8 + 6.5 * mark.label.length;
        const end = x > right - 30;
        return svg("g", { class: `mark ${mark.kind ?? ""}` },
          svg("line", { x1: x, x2: x, y1: top, y2: bottom }),
          room && svg("text", { x: end ? x - 3 : x + 3, y: top - 4, "text-anchor": end ? "end" : "start" }, mark.label));
      }));
  }

  drawLines(width) {
    const path = (values) => {
      let text = "";
      let pen = false;
      for (const point of thinned(this.steps, values, Math.max(100, width))) {
        if (point === null) pen = false;
        else {
          text += `${pen ? "L" : "M"}${this.x(point[0]).toFixed(1)} ${this.y(point[1]).toFixed(1)}`;
          pen = true;
        }
      }
      return text;
    };
    const one = this.steps.length === 1;
    return svg("g", { class: "lines" }, this.drawn.map((line, i) => {
      const stroke = `var(--${line.colour})`;
      if (one && line.values[0] !== null) return svg("circle", { cx: this.x(this.steps[0]), cy: this.y(line.values[0]), r: 3, fill: stroke });
      return [
        this.smooth && line.main !== line.values && svg("path", { class: "line faint", d: path(line.values), stroke }),
        svg("path", { class: "line", d: path(line.main), stroke, "stroke-dasharray": this.lines.length > 1 ? DASHES[i % DASHES.length] : null }),
      ];
    }));
  }

  drawCursor() {
    const place = at_step === null || !this.steps.length ? this.steps.length - 1 : nearest(this.steps, at_step);
    if (place < 0) return;
    const step = this.steps[place];
    const figures = this.lines.map((line) => `${this.lines.length > 1 ? `${line.name} ` : ""}${number(line.values[place], this.digits)}`).join(", ");
    const marks = this.marks.filter((mark) => mark.step === step).map((mark) => mark.text);
    const text = [`${this.axis === "rows" ? "after " : "step "}${step.toLocaleString("en")}${this.axis === "rows" ? " rows" : ""}: ${figures}`, ...marks].join("; ");
    this.plot.setAttribute("aria-valuemin", this.steps[0]);
    this.plot.setAttribute("aria-valuemax", this.steps.at(-1));
    this.plot.setAttribute("aria-valuenow", step);
    this.plot.setAttribute("aria-valuetext", text);
    setText(this.readout, at_step === null ? "" : text);
    if (!this.cursor || !this.x) return;
    if (at_step === null) return replace(this.cursor);
    const { top, bottom } = this.inner;
    replace(this.cursor,
      svg("line", { x1: this.x(step), x2: this.x(step), y1: top, y2: bottom }),
      this.lines.filter((line) => line.values[place] !== null).map((line) =>
        svg("circle", { cx: this.x(step), cy: this.y(line.values[place]), r: 3.5, fill: `var(--${line.colour})` })));
  }

  point(event) {
    if (!this.x || !this.steps.length) return;
    const box = this.plot.getBoundingClientRect();
    point_at(this.steps[nearest(this.steps, this.back(event.clientX - box.left))]);
  }

  key(event) {
    if (!this.steps.length) return;
    const last = this.steps.length - 1;
    const place = at_step === null ? last : nearest(this.steps, at_step);
    const leap = Math.max(1, Math.round(this.steps.length / 10));
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -leap, PageUp: leap, Home: -last, End: last };
    if (event.key === "Escape") return point_at(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    point_at(this.steps[Math.min(last, Math.max(0, place + moves[event.key]))]);
  }

  fillTable() {
    if (!this.details.open) return;
    const from = Math.max(0, this.steps.length - ROWS);
    const rows = [];
    for (let i = this.steps.length - 1; i >= from; i -= 1) {
      rows.push(h("tr", {}, h("th", { scope: "row" }, this.steps[i].toLocaleString("en")), this.lines.map((line) => h("td", { class: "n" }, number(line.values[i], 4)))));
    }
    replace(this.table,
      from > 0 && h("p", { class: "muted" }, `The last ${ROWS} of ${this.steps.length} that are shown; the API has all.`),
      h("table", {},
        h("caption", { class: "hidden" }, this.title),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, this.axis === "rows" ? "rows" : "step"), this.lines.map((line) => h("th", { scope: "col", class: "n" }, this.lines.length > 1 ? [dot(line.colour), line.name] : this.title)))),
        h("tbody", {}, rows)));
  }
}
