// The browser of samples: filters, pages, and for each sample every score with its explanation.

import { Refused, get } from "./api.js";
import { at, dot, count, h, number, plural, replace, setText, show, signed } from "./dom.js";

const PATH = "api/v1/reward/run/samples";
const PAGE = 10;

export class Samples {
  constructor() {
    this.clear();
    const again = () => this.search();
    let typing = 0;
    at("filters").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(again, 250);
    });
    at("filters").addEventListener("reset", () => setTimeout(again, 0));
    at("filters").addEventListener("submit", (event) => event.preventDefault());
    at("older-samples").addEventListener("click", () => this.search(this.next));
    at("fresh-samples").addEventListener("click", () => {
      this.search();
      at("samples-title").scrollIntoView({ block: "start" });
    });
  }

  clear() {
    this.next = null;
    this.total = null;
    this.shown = 0;
    this.searched = 0;
    this.asked = 0;
    this.edition = null;
    replace(at("sample-list"));
  }

  /** The mounts that can be asked for. */
  setMounts(mounts) {
    this.mounts = mounts;
    const names = mounts.map((mount) => mount.name);
    const select = at("f-mount");
    if (names.join() === [...select.options].slice(1).map((option) => option.value).join()) return;
    const kept = select.value;
    replace(select, h("option", { value: "" }, "any (fused value)"), names.map((name) => h("option", { value: name }, name)));
    select.value = names.includes(kept) ? kept : "";
  }

  get query() {
    const value = (id) => at(id).value.trim();
    return { mount: value("f-mount"), status: value("f-status"), low: value("f-low"), high: value("f-high"), step: value("f-step"), text: value("f-text") };
  }

  /** Whether there are new ones; they are not put in under the reader's eyes, unless none are shown. */
  async look() {
    const answer = await get(PATH, { limit: 1 });
    if (answer.edition !== this.edition || this.total === null || (this.shown === 0 && answer.total > this.total)) return this.search();
    show(at("fresh-samples"), answer.total > this.total);
    setText(at("fresh-samples"), `Show ${plural(answer.total - this.total, "new sample")}`);
  }

  /** Search from the newest, or below a number. */
  async search(before = null) {
    const turn = (this.asked += 1);
    let answer;
    try {
      answer = await get(PATH, { ...this.query, limit: PAGE, before });
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setText(at("samples-count"), error.message);
      return;
    }
    if (turn !== this.asked) return; // another search was begun meanwhile
    if (before === null) {
      [this.shown, this.searched] = [0, 0];
      this.total = answer.total;
      this.edition = answer.edition;
      replace(at("sample-list"));
      show(at("fresh-samples"), false);
    }
    this.axis = answer.axis;
    this.next = answer.next;
    this.shown += answer.samples.length;
    this.searched += answer.searched;
    at("sample-list").append(...answer.samples.map((sample) => this.card(sample)));
    for (const one of at("sample-list").querySelectorAll(".text:not([tabindex])")) {
      if (one.scrollHeight > one.clientHeight) one.tabIndex = 0; // so that arrow keys scroll it
    }
    show(at("older-samples"), this.next !== null);
    setText(at("older-samples"), answer.samples.length ? "Show older samples" : "Search further back");
    setText(at("samples-count"), this.told());
  }

  told() {
    if (!this.total) return "No samples were kept yet.";
    const filtered = Object.values(this.query).some(Boolean);
    if (!filtered) return `${count(this.shown)} of ${plural(this.total, "sample")}`;
    return `${plural(this.shown, "sample")} found among the newest ${count(this.searched)} of ${count(this.total)}`;
  }

  card(sample) {
    const { explain, sum } = sample;
    const where = this.axis === "rows" ? `row ${count(sample.step)}` : `step ${count(sample.step)}`;
    const title = `s${sample.number}`;
    const gate = explain.gate && explain.gate !== "none";
    return h("article", { class: "sample", "aria-labelledby": title },
      h("header", {},
        h("h3", { id: title }, `${where} · ${sample.sample_id ?? ""}`),
        gate && h("span", { class: "tag bad" }, `gate: ${explain.gate}`),
        explain.masked && h("span", { class: "tag bad" }, "masked"),
        explain.blocked && h("span", { class: "tag bad" }, "blocked"),
        h("span", { class: "tag" }, `weights r${explain.revision ?? "?"}`),
        h("b", { class: "fused" }, h("span", { class: "muted" }, "fused "), sample.fused === null ? "none" : number(sample.fused))),
      h("div", { class: "texts" },
        h("div", {}, h("h4", {}, "Prompt"), prompt(sample.prompt, sample.cut.includes("prompt"))),
        h("div", {}, h("h4", {}, "Response"), text(sample.response, sample.cut.includes("response"))),
        sample.reference ? h("details", {}, h("summary", {}, "Reference"), text(flat(sample.reference), sample.cut.includes("reference"))) : null),
      this.parts(sample), equation(sum));
  }

  parts(sample) {
    const parts = Object.entries(sample.explain.mounts ?? {});
    if (!parts.length) return null;
    const terms = new Map(sample.sum.terms.map((term) => [term.mount, term]));
    const colour = (name) => this.mounts?.find((mount) => mount.name === name)?.colour ?? "muted";
    return h("table", { class: "parts" },
      h("caption", { class: "hidden" }, "Scores of each mount"),
      h("thead", {}, h("tr", {}, ["mount", "score", "weight", "adds", "because"].map((name, i) => h("th", { scope: "col", class: i && i < 4 ? "n" : null }, name)))),
      h("tbody", {}, parts.map(([name, part]) => h("tr", {},
        h("th", { scope: "row" }, dot(colour(name)), name, part.status !== "ok" && h("span", { class: `tag ${part.status === "failed" ? "bad" : ""}` }, String(part.status).replace("_", " "))),
        h("td", { class: "n", "data-label": "score" }, number(part.raw)),
        h("td", { class: "n", "data-label": part.role === "gate" ? "word" : "weight" }, part.role === "gate" ? (part.severity && part.severity !== "none" ? part.severity : "open") : number(part.weight)),
        h("td", { class: "n", "data-label": "adds" }, part.contribution === null ? "–" : signed(part.contribution)),
        h("td", { class: "because" }, part.reason ?? "", terms.has(name) && h("span", { class: "how" }, terms.get(name).text))))));
  }
}

/** The fused value as the sum that it is. */
function equation(sum) {
  if (sum.fused === null) return h("p", { class: "sum" }, sum.note);
  if (sum.total === null) return h("p", { class: "sum" }, h("b", {}, `fused value ${number(sum.fused, 4)}. `), sum.note);
  const terms = sum.terms.flatMap((term, i) => {
    const sign = term.value < 0 ? (i ? " − " : "−") : i ? " + " : "";
    return [sign, h("span", { class: "term" }, number(Math.abs(term.value), 4), h("small", {}, ` ${term.mount}`))];
  });
  return h("p", { class: "sum" }, h("span", { class: "muted" }, "fused value: "), terms.length ? terms : "0", " = ", h("b", {}, number(sum.fused, 4)),
    sum.holds === false && h("span", { class: "bad" }, ` (the parts add up to ${number(sum.total, 4)})`));
}

function text(value, is_cut) {
  if (!value || !String(value).trim()) return h("p", { class: "empty" }, value === null || value === undefined ? "not kept" : "(an empty answer)");
  return h("div", { class: "text" }, String(value), is_cut && h("span", { class: "muted" }, " … (cut here)"));
}

const prompt = (value, is_cut) => text(flat(value), is_cut);

/** A prompt or a reference as text: messages one a paragraph. */
function flat(value) {
  if (value === null || typeof value !== "object") return value;
  if (!Array.isArray(value)) return JSON.stringify(value);
  return value.map((one) => (one && typeof one === "object" && "content" in one ? `${one.role}: ${flat(one.content)}` : String(flat(one)))).join("\n\n");
}
