// The weights: sliders with numbers, drafts that become one change, pins, history and rollback.

import { Refused, change, get } from "./api.js";
import { at, clock, dot, h, number, plural, replace, say, setText, show } from "./dom.js";
import { ask } from "./ask.js";
import { peak, sketch, words } from "./schedule.js";

const PATH = "api/v1/reward/weights";
const AUTHOR = "verl-reward-author";
const PAGE = 20;

export class Weights {
  /** `changed` is called when other parts of the page should look again. */
  constructor(changed) {
    this.changed = changed;
    this.clear();
    at("weights-form").addEventListener("submit", (event) => (event.preventDefault(), this.apply()));
    at("discard").addEventListener("click", () => this.discard());
    at("older-changes").addEventListener("click", () => this.readHistory(this.history.at(-1)?.revision));
    try {
      at("author").value = localStorage.getItem(AUTHOR) ?? "";
    } catch {
      // a browser that keeps nothing
    }
  }

  clear() {
    this.now = null;
    this.rows = new Map();
    this.drafts = new Map();
    this.history = [];
    this.more = false;
    this.read_only = null;
    replace(at("sliders"));
    replace(at("history"));
    setText(at("weights-error"), "");
    show(at("apply"), false);
  }

  /** Take what GET …/weights answers. */
  take(answer) {
    const is_new = this.now === null || answer.revision !== this.now.revision;
    if (this.now && answer.revision < this.now.revision && answer.run_id === this.now.run_id) return;
    this.now = answer;
    for (const [name, value] of this.drafts) if (value === answer.weights[name]) this.drafts.delete(name);
    this.draw();
    if (is_new) this.readHistory();
  }

  draw() {
    const { weights, pinned, schedules, revision, step, effective_step } = this.now;
    setText(at("revision"), `revision ${revision}`);
    const steps = this.kind === "training" || this.kind === "folder";
    const waits = steps && this.running !== null && effective_step > this.running;
    const kept = Object.keys(schedules).length && steps ? ` Schedules are shown at step ${step}.` : "";
    setText(at("weights-lead"), this.read_only ? "They are shown as they were; nothing can be changed here."
      : waits ? `Revision ${revision} counts from step ${effective_step} on; until then the one before it does.${kept}`
        : `A change is one new revision. It counts from the next step on, never within one.${kept}`.replace("step on, never within one", steps ? "step on, never within one" : "request on, never within one"));
    const names = Object.keys(weights);
    if (names.length !== this.rows.size || names.some((name) => !this.rows.has(name))) {
      this.rows = new Map(names.map((name) => [name, this.row(name)]));
      replace(at("sliders"), [...this.rows.values()].map((row) => row.element));
    }
    for (const name of names) this.rows.get(name).draw(weights[name], pinned.includes(name), schedules[name], step);
    this.drawDraft();
  }

  /** One weight's row. */
  row(name) {
    const colour = this.mounts?.find((mount) => mount.name === name)?.colour ?? "muted";
    const id = `weight-${name}`;
    const slider = h("input", { type: "range", min: 0, max: 2, step: 0.05, id, "aria-label": `weight of ${name}` });
    const field = h("input", { type: "number", min: 0, max: 1000000, step: "any", inputmode: "decimal", "aria-label": `weight of ${name}, as a number` });
    const tags = h("span", { class: "tags" });
    const told = h("p", { class: "told" });
    const unpin = h("button", { type: "button", class: "quiet", on: { click: () => this.unpin(name) } }, "Clear the pin");
    const element = h("div", { class: "weight", role: "group", "aria-label": name },
      h("div", { class: "name" }, h("span", {}, dot(colour), h("b", {}, name)), tags),
      h("div", { class: "turn" }, slider, field), h("div", { class: "under" }, told, unpin));
    const shown = (value) => {
      if (value > Number(slider.max)) fit(slider, value);
      slider.value = value;
      slider.setAttribute("aria-valuetext", number(value));
      element.classList.toggle("drafted", this.drafts.has(name));
    };
    slider.addEventListener("input", () => {
      field.value = Number(slider.value);
      this.drafted(name, Number(slider.value));
      shown(Number(slider.value));
    });
    field.addEventListener("input", () => {
      const value = field.value === "" || !field.checkValidity() ? NaN : Number(field.value);
      field.setAttribute("aria-invalid", String(Number.isNaN(value)));
      this.drafted(name, value);
      if (!Number.isNaN(value)) shown(value);
    });
    const draw = (value, is_pinned, schedule, step) => {
      const top = Math.max(value, schedule ? peak(schedule) : 0);
      if (!this.drafts.has(name)) {
        fit(slider, top);
        shown(value);
        if (document.activeElement !== field || field.value === "") field.value = Number(value.toPrecision(6));
      }
      for (const input of [slider, field]) input.disabled = Boolean(this.read_only);
      replace(tags, is_pinned && h("span", { class: "tag" }, "pinned"), schedule && !is_pinned && h("span", { class: "tag" }, "on its schedule"));
      replace(told, schedule && sketch(schedule, step), schedule ? `${words(schedule)}${is_pinned ? "; the pin stands over it" : ""}` : is_pinned ? "set live, over its config's number" : "");
      show(unpin, is_pinned && !this.read_only);
      element.classList.toggle("drafted", this.drafts.has(name));
    };
    return { element, draw };
  }

  drafted(name, value) {
    if (value === this.now.weights[name]) this.drafts.delete(name);
    else this.drafts.set(name, value);
    this.drawDraft();
  }

  drawDraft() {
    const changes = [...this.drafts];
    show(at("apply"), changes.length > 0 && !this.read_only);
    if (!changes.length) return;
    const told = changes.map(([name, value]) => `${name} ${number(this.now.weights[name])} → ${Number.isNaN(value) ? "?" : number(value)}`);
    setText(at("draft"), `Not yet applied: ${told.join(", ")}`);
    setText(at("apply-button"), `Apply ${plural(changes.length, "change")}`);
    at("apply-button").disabled = changes.some(([, value]) => Number.isNaN(value));
  }

  discard() {
    this.drafts.clear();
    setText(at("weights-error"), "");
    at("reason").value = "";
    this.draw();
    for (const input of at("sliders").querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  }

  why() {
    const author = at("author").value.trim();
    try {
      localStorage.setItem(AUTHOR, author);
    } catch {
      // a browser that keeps nothing
    }
    return { author: author || "page", revision: this.now.revision };
  }

  async apply() {
    const body = Object.fromEntries(this.drafts);
    if (!Object.keys(body).length || at("apply-button").disabled) return;
    at("apply-button").disabled = true;
    await this.made(() => change("POST", PATH, body, { ...this.why(), reason: at("reason").value.trim() }), (answer) => {
      this.drafts.clear();
      at("reason").value = "";
      return `Applied as ${from(answer, this.kind)}`;
    });
    at("apply-button").disabled = false;
  }

  async unpin(name) {
    await this.made(() => change("DELETE", `${PATH}/pins/${encodeURIComponent(name)}`, undefined, this.why()),
      (answer) => `${name} returns to its config: ${from(answer, this.kind)}`);
  }

  /** Make a change; what is refused is told beside the sliders, and drafts stay. */
  async made(doing, told) {
    setText(at("weights-error"), "");
    try {
      const answer = await doing();
      say(told(answer));
      this.take(answer);
      this.changed();
    } catch (error) {
      setText(at("weights-error"), await this.refusal(error));
    }
  }

  async refusal(error) {
    if (!(error instanceof Refused)) return `Nobody answered (${error.message}). It is not known whether the change was made: look at the history.`;
    if (error.status === 412) {
      this.take(await get(PATH));
      return `Somebody else changed the weights meanwhile: revision ${this.now.revision} holds now. Nothing of yours was applied; look at it, then apply again.`;
    }
    if (error.status === 404 || error.status === 405) return `This server cannot do that (${error.message}).`;
    if (error.status === 401 || error.status === 403) return `The token does not allow changes (${error.message}).`;
    return error.message;
  }

  // -- history ---------------------------------------------------------------------------------

  /** Read the newest changes, or those before a revision. */
  async readHistory(before) {
    try {
      const answer = await get(`${PATH}/history`, { limit: PAGE, before });
      const ours = answer.history.filter((one) => one.run_id === answer.run_id);
      const known = before ? this.history : this.history.filter((one) => one.revision < (ours.at(-1)?.revision ?? Infinity));
      this.history = before ? [...known, ...ours.filter((one) => one.revision < before)] : [...ours, ...known];
      if (before || !known.length) this.more = answer.history.length === PAGE;
      this.drawHistory();
      this.changed();
    } catch (error) {
      if (error instanceof Refused) setText(at("weights-error"), error.message);
    }
  }

  drawHistory() {
    const key = this.history.map((one) => one.revision).join() + this.read_only + this.running;
    if (key === this.historyKey) return;
    this.historyKey = key;
    const open = document.activeElement?.closest?.("#history button")?.dataset.revision;
    replace(at("history"), this.history.map((one, i) => this.entry(one, i === 0)));
    if (open) at("history").querySelector(`button[data-revision="${open}"]`)?.focus();
    show(at("older-changes"), this.more);
  }

  entry(one, is_newest) {
    const steps = this.kind !== "serving";
    const when = steps ? `from step ${one.effective_step}` : "";
    return h("li", {},
      h("div", { class: "line-one" },
        h("b", {}, `r${one.revision}`), h("span", {}, [when, one.author, clock(one.time)].filter(Boolean).join(" · ")),
        is_newest && h("span", { class: "tag" }, "newest"),
        !is_newest && !this.read_only && h("button", {
          type: "button", class: "quiet", "data-revision": one.revision, "aria-label": `Roll back to revision ${one.revision}`, on: { click: () => this.rollback(one) },
        }, "Roll back")),
      one.reason && h("p", { class: "reason" }, one.reason),
      h("p", { class: "muted" }, differences(one.before, one.after).join(", ") || "no weight differs"));
  }

  async rollback(one) {
    const now = this.now.weights;
    const rows = Object.keys(one.after).filter((name) => name in now).map((name) => h("tr", {},
      h("th", { scope: "row" }, name), h("td", { class: "n" }, number(now[name])), h("td", { class: "n" }, setting(one.after[name]))));
    const answer = await ask({
      title: `Roll back to revision ${one.revision}?`,
      yes: "Roll back",
      body: [h("p", {}, "All weights, pins and schedules become what they were then, as a new revision. Nothing is taken out of the history."),
        h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "mount"), h("th", { scope: "col", class: "n" }, "now"), h("th", { scope: "col", class: "n" }, "then"))), h("tbody", {}, rows))],
      act: (reason) => change("POST", `${PATH}/rollback`, { revision: one.revision }, { ...this.why(), reason }),
      refused: (error) => this.refusal(error),
    });
    if (!answer) return;
    this.drafts.clear();
    say(`Rolled back to revision ${one.revision}: ${from(answer, this.kind)}`);
    this.take(answer);
    this.changed();
  }
}

const from = (answer, kind) => `revision ${answer.revision}${kind === "serving" ? ", from the next request on" : `, from step ${answer.effective_step} on`}`;

/** Room on the slider for a value: a round number above it, 2 at least. */
function fit(slider, value) {
  const top = [2, 5, 10, 20, 50, 100].find((one) => value <= one * 0.8) ?? 10 ** Math.ceil(Math.log10(value * 1.25));
  slider.max = top;
  slider.step = top / 40;
}

const setting = (value) => (value && typeof value === "object" ? words(value) : number(value));

function differences(before, after) {
  return Object.keys(after).filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name])).map((name) =>
    name in before ? `${name} ${setting(before[name])} → ${setting(after[name])}` : `${name} ${setting(after[name])}`);
}
