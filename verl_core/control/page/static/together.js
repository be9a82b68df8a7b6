// How the rewards move together: the newest correlations as a table, one pair over time, and where
// one reward rises while another falls.

import { Chart } from "./chart.js";
import { at, dot, h, number, plural, replace, setText, show, signed } from "./dom.js";

export class Together {
  constructor() {
    this.chart = new Chart({ title: "correlation over time", digits: 2, height: 170, least: 0.2 });
    this.select = h("select", { id: "pair-select", on: { change: () => this.drawPair() } });
    replace(at("pair"), h("label", { for: "pair-select" }, "Two rewards"), this.select, this.chart.element);
    this.clear();
  }

  clear() {
    this.answer = null;
    this.chosen = null;
    show(at("together"), false);
  }

  /** Take what …/run/correlation answers. */
  take(answer, mounts) {
    this.answer = answer;
    this.mounts = mounts;
    const is_known = answer.pairs.length > 0;
    show(at("together"), answer.mounts.length > 1);
    show(at("pair"), is_known);
    const steps = answer.axis === "rows" ? "points" : "steps";
    setText(at("together-lead"), is_known
      ? `Of the means of the last ${answer.window} ${steps}: 1 where two rewards rise and fall together, −1 where one rises as the other falls. A reward that rises at the cost of another may be gamed.`
      : `It takes 8 ${steps} with figures before anything can be said.`);
    this.drawMatrix();
    this.fillSelect();
    this.drawPair();
    this.drawMarks();
  }

  colour(name) {
    return this.mounts.find((mount) => mount.name === name)?.colour ?? "muted";
  }

  drawMatrix() {
    const { mounts, pairs } = this.answer;
    if (!pairs.length) return replace(at("matrix"));
    const of = (a, b) => pairs.find((pair) => (pair.first === a && pair.second === b) || (pair.first === b && pair.second === a))?.latest;
    replace(at("matrix"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Correlations now" }, h("table", { class: "matrix" },
      h("caption", {}, "Now"),
      h("thead", {}, h("tr", {}, h("td"), mounts.slice(0, -1).map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, mounts.slice(1).map((row, i) => h("tr", {}, h("th", { scope: "row" }, row), mounts.slice(0, -1).map((column, j) => {
        if (j > i) return h("td");
        const value = of(row, column);
        const cell = h("td", { class: "cell" }, value === null || value === undefined ? "–" : signed(value, 2));
        if (value !== null && value !== undefined) {
          cell.style.backgroundColor = `color-mix(in srgb, var(--${value > 0 ? "c0" : "gate"}) ${Math.round(Math.abs(value) * 30)}%, transparent)`;
        }
        return cell;
      })))))));
  }

  fillSelect() {
    const names = this.answer.pairs.map((pair) => `${pair.first} and ${pair.second}`).sort();
    if (names.join() === [...this.select.options].map((option) => option.value).join()) return;
    const kept = this.select.value;
    const strongest = this.answer.pairs[0];
    replace(this.select, names.map((name) => h("option", { value: name }, name)));
    this.select.value = names.includes(kept) ? kept : strongest ? `${strongest.first} and ${strongest.second}` : "";
  }

  drawPair() {
    const pair = this.answer.pairs.find((one) => `${one.first} and ${one.second}` === this.select.value);
    if (!pair) return;
    const marks = this.answer.marks.filter((mark) => [mark.rising, mark.falling].sort().join() === [pair.first, pair.second].sort().join())
      .map((mark) => ({ step: mark.step, label: "▲▼", kind: "opposed", text: `${mark.rising} rises here while ${mark.falling} falls` }));
    this.chart.update({ steps: this.answer.steps, axis: this.answer.axis, marks, lines: [{ name: this.select.value, colour: "c0", values: pair.values }] });
  }

  drawMarks() {
    const { marks, axis } = this.answer;
    const key = JSON.stringify(marks);
    if (key === this.marksKey) return;
    this.marksKey = key;
    const where = (step) => (axis === "rows" ? `row ${step.toLocaleString("en")}` : `step ${step.toLocaleString("en")}`);
    const shown = marks.slice(-20).reverse();
    replace(at("opposed"),
      shown.map((mark) => h("li", {}, h("b", {}, mark.until === mark.step ? where(mark.step) : `${where(mark.step)} to ${mark.until.toLocaleString("en")}`), ": ",
        dot(this.colour(mark.rising)), `${mark.rising} rises (${signed(mark.rise)} over the window) while `, dot(this.colour(mark.falling)), `${mark.falling} falls (${signed(mark.fall)})`)),
      !shown.length && h("li", { class: "muted" }, "Nowhere so far."),
      marks.length > shown.length && h("li", { class: "muted" }, `${plural(marks.length - shown.length, "earlier one")} not shown.`));
  }
}
