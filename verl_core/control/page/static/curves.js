// The curves: fused reward, each reward, gates, failures, KL, weights; with marks where the weights
// changed, and where one reward rises while another falls.

import { Chart } from "./chart.js";
import { at, replace, setText, show } from "./dom.js";

/** What of the metrics is asked for. */
export const PREFIXES = ["reward/", "weights/", "actor/kl", "response/length_mean", "record/"];

export class Curves {
  constructor() {
    this.charts = new Map();
    at("smooth").addEventListener("change", () => this.draw());
    this.clear();
  }

  clear() {
    this.edition = null;
    this.steps = [];
    this.series = {};
    this.latest = null;
    this.history = [];
    this.opposed = [];
    for (const chart of this.charts.values()) chart.remove();
    this.charts.clear();
  }

  /** What the next request should say. */
  get query() {
    return { edition: this.edition, after: this.steps.at(-1), prefix: PREFIXES };
  }

  /** Take an answer of …/run/series; whether anything is new. */
  take(answer) {
    this.axis = answer.axis;
    this.every = answer.every;
    this.latest = answer.latest;
    if (answer.edition !== this.edition) {
      this.edition = answer.edition;
      this.steps = [];
      this.series = {};
    } else if (!answer.steps.length) return false;
    const before = this.steps.length;
    this.steps = this.steps.concat(answer.steps);
    for (const name of new Set([...Object.keys(this.series), ...Object.keys(answer.series)])) {
      const old = this.series[name] ?? new Array(before).fill(null);
      this.series[name] = old.concat(answer.series[name] ?? new Array(answer.steps.length).fill(null));
    }
    return true;
  }

  /** Marks of the revisions that this run has used, or will. */
  revisionMarks() {
    const used = this.series["weights/revision"] ?? [];
    return this.history.filter((change) => change.revision > this.firstRevision).map((change) => {
      const place = used.findIndex((revision) => revision !== null && revision >= change.revision);
      const step = place >= 0 ? this.steps[place] : this.axis === "step" ? change.effective_step : null;
      return {
        step, revision: change.revision, label: `r${change.revision}`, kind: place >= 0 ? "" : "pending",
        text: `revision ${change.revision} counts from here, by ${change.author}${change.reason ? `: ${change.reason}` : ""}`,
      };
    }).filter((mark) => mark.step !== null);
  }

  draw(mounts = this.mounts ?? []) {
    this.mounts = mounts;
    const rewards = mounts.filter((mount) => mount.role !== "gate");
    const gates = mounts.filter((mount) => mount.role === "gate");
    const marks = this.revisionMarks();
    const at_mount = (name) => [...marks, ...this.opposed.filter((one) => one.rising === name || one.falling === name).map((one) => ({
      step: one.step, label: one.rising === name ? "▲" : "▼", kind: "opposed",
      text: `${one.rising} rises here while ${one.falling} falls`,
    }))];
    this.one("fused", { title: "fused reward", height: 190 }, [{ name: "fused", key: "reward/fused/mean", colour: "ink" }], marks);
    for (const mount of rewards) {
      this.one(`mount:${mount.name}`, { title: mount.name }, [{ name: mount.name, key: `reward/${mount.name}/mean`, colour: mount.colour }], at_mount(mount.name));
    }
    this.one("kl", { title: "KL to the reference" , floor: 0, digits: 4 }, [{ name: "KL", key: "actor/kl", colour: "c6" }], marks);
    this.one("gates", { title: "gates: share of answers", floor: 0, least: 0.02 },
      gates.map((gate, i) => ({ name: gate.name, key: `reward/${gate.name}/rate`, colour: i ? `c${i % 8}` : "gate" })), marks);
    this.one("failures", { title: "failed, abstained and masked: share", floor: 0, least: 0.02 }, [
      ...mounts.flatMap((mount) => [
        { name: `${mount.name} failed`, key: `reward/${mount.name}/failed`, colour: mount.colour, unless_zero: true },
        { name: `${mount.name} abstained`, key: `reward/${mount.name}/abstained`, colour: mount.colour, unless_zero: true },
      ]),
      { name: "masked", key: "reward/masked", colour: "muted" },
      { name: "blocked", key: "reward/blocked", colour: "before", unless_zero: true },
    ], marks);
    this.one("weights", { title: "weights", floor: 0 }, rewards.map((mount) => ({ name: mount.name, key: `weights/${mount.name}`, colour: mount.colour })), marks);
    this.one("length", { title: "length of a response, tokens", digits: 1, floor: 0 }, [{ name: "length", key: "response/length_mean", colour: "c7" }], marks);
    this.lead();
  }

  lead() {
    const words = [];
    if (!this.steps.length) words.push("Nothing was scored yet.");
    else if (this.axis === "rows") words.push("By rows scored so far; each point is about a second.");
    if (this.every > 1) words.push(`The run is long: one in ${this.every} steps is shown.`);
    const looked = this.latest?.figures?.["record/looked_at"];
    if (looked !== undefined && looked !== null && looked < 0.999) words.push(`Under load ${Math.round(looked * 100)} % of the rows are looked at.`);
    words.push("A line marked r4 is where revision 4 of the weights begins to count; ▲ and ▼ where one reward rises while another falls.");
    setText(at("curves-lead"), words.join(" "));
  }

  one(id, options, lines, marks) {
    const there = lines.filter((line) => {
      const values = this.series[line.key];
      return values && values.some((value) => value !== null && (!line.unless_zero || value !== 0));
    });
    let chart = this.charts.get(id);
    const needed = there.length > 0 || id === "fused" || id.startsWith("mount:");
    if (!needed) {
      if (chart) show(chart.element, false);
      return;
    }
    if (!chart) {
      chart = new Chart(options);
      this.charts.set(id, chart);
      if (id === "fused") chart.element.classList.add("first");
    }
    show(chart.element, true);
    const order = [...this.charts.keys()].sort((a, b) => rank(a) - rank(b));
    if (order.some((key, i) => at("charts").children[i] !== this.charts.get(key).element)) {
      replace(at("charts"), order.map((key) => this.charts.get(key).element));
    }
    chart.update({
      steps: this.steps, marks, axis: this.axis, smooth: at("smooth").checked && id !== "weights",
      lines: there.map((line) => ({ name: line.name, colour: line.colour, values: this.series[line.key] })),
    });
  }
}

function rank(id) {
  if (id.startsWith("mount:")) return 1;
  return { fused: 0, kl: 2, gates: 3, failures: 4, weights: 5, length: 6 }[id];
}
