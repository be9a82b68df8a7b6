// The mounts: state, generation, latency, what went wrong last, and a button that reloads one.

import { Refused, change } from "./api.js";
import { at, clock, count, dot, duration, h, plural, replace, say } from "./dom.js";

const PATH = "api/v1/reward/providers";

const OUTCOMES = {
  swapped: ["good", "a new generation scores from the next lease on"],
  restarted: ["good", "it was started anew, with the code that is installed now"],
  unchanged: ["good", "its files are those that score already"],
  refused: ["bad", "what is there now is refused, and the old generation goes on"],
};

export class Mounts {
  /** `changed` is called after a reload. */
  constructor(changed) {
    this.changed = changed;
    this.clear();
  }

  clear() {
    this.key = "";
    this.busy = new Set();
    this.said = new Map(); // mount -> how its last reload here ended
    this.read_only = null;
    replace(at("mount-list"));
  }

  take(mounts) {
    this.mounts = mounts;
    this.draw();
  }

  draw() {
    const key = JSON.stringify([this.mounts, [...this.busy], [...this.said], this.read_only]);
    if (key === this.key) return;
    this.key = key;
    const open = document.activeElement?.closest?.("#mount-list button")?.dataset.mount;
    replace(at("mount-list"), h("table", { class: "stack mounts" },
      h("thead", {}, h("tr", {}, ["mount", "state", "generation", "mean latency", "rows", "failures", "", ].map((name) =>
        h("th", { scope: "col", class: ["mean latency", "rows", "failures"].includes(name) ? "n" : null }, name || h("span", { class: "hidden" }, "actions"))))),
      h("tbody", {}, this.mounts.map((mount) => this.rows(mount)))));
    if (open) at("mount-list").querySelector(`button[data-mount="${CSS.escape(open)}"]`)?.focus();
  }

  rows(mount) {
    const loaded = mount.calls !== undefined;
    const notes = this.notes(mount);
    return [
      h("tr", { class: notes.length ? "has-why" : null },
        h("th", { scope: "row" }, dot(mount.colour), mount.name, " ", h("span", { class: "tag" }, mount.role === "gate" ? `gate · ${mount.plugin}` : mount.plugin)),
        h("td", { "data-label": "state" }, h("span", {}, h("span", { class: `state ${mood(mount)}` }, mount.state ?? "–"), mount.execution ? ` in ${mount.execution}` : "")),
        h("td", { "data-label": "generation" }, mount.generation ?? "–", mount.retired ? ` (${plural(mount.retired, "older one")} still in use)` : ""),
        h("td", { class: "n", "data-label": "mean latency" }, loaded && mount.calls ? `${duration(mount.seconds_mean)} a call` : "–"),
        h("td", { class: "n", "data-label": "rows" }, loaded ? count(mount.rows) : "–"),
        h("td", { class: "n", "data-label": "failures" }, loaded ? count(mount.failures) : "–"),
        h("td", { class: "act" }, this.button(mount))),
      notes.length ? h("tr", { class: "why" }, h("td", { colspan: "7" }, notes)) : null,
    ].filter(Boolean);
  }

  button(mount) {
    if (this.read_only || mount.calls === undefined) return null;
    return h("button", {
      type: "button", "data-mount": mount.name, "aria-label": `Reload ${mount.name}`, disabled: this.busy.has(mount.name),
      on: { click: () => this.reload(mount.name) },
    }, this.busy.has(mount.name) ? "Looking …" : "Reload");
  }

  /** What else there is to say of a mount, one paragraph each. */
  notes(mount) {
    const found = [];
    if (mount.candidate) found.push(h("p", {}, `A new generation is on its way: ${mount.candidate.state ?? "being proved"}${mount.candidate.since ? ` since ${clock(mount.candidate.since)}` : ""}.`));
    if (mount.last_error) found.push(h("p", { class: "bad error" }, h("b", {}, "Last error: "), mount.last_error));
    if (mount.code_changed) found.push(h("p", {}, typeof mount.code_changed === "string" ? mount.code_changed : "Its code has changed since it was loaded."));
    const outcome = this.said.get(mount.name);
    if (outcome && !(mount.last_error && outcome.kind === "bad" && outcome.text.includes(mount.last_error))) found.push(h("p", { class: outcome.kind }, outcome.text));
    const files = Object.entries(mount.digests ?? {});
    if (files.length) {
      found.push(h("details", {}, h("summary", {}, plural(files.length, "file")),
        h("ul", { class: "files" }, files.map(([name, digest]) => h("li", {}, h("code", {}, name), " ", h("span", { class: "muted" }, `sha256 ${String(digest).slice(0, 16)}…`))))));
    }
    return found;
  }

  async reload(name) {
    this.busy.add(name);
    this.said.delete(name);
    this.draw();
    let outcome;
    try {
      const answer = await change("POST", `${PATH}/${encodeURIComponent(name)}/reload`, {});
      const result = answer.outcome ? answer : answer.provider ?? answer;
      const [kind, words] = OUTCOMES[result.outcome] ?? ["good", result.outcome ?? "done"];
      outcome = { kind, text: `Reload: ${result.outcome ?? "done"}: ${words}${result.detail ? ` (${result.detail})` : ""}.` };
    } catch (error) {
      outcome = { kind: "bad", text: told(error) };
    }
    this.busy.delete(name);
    this.said.set(name, outcome);
    say(`${name}: ${outcome.text}`, outcome.kind);
    this.draw();
    this.changed();
  }
}

function told(error) {
  if (!(error instanceof Refused)) return `Nobody answered (${error.message}).`;
  if (error.status === 404 || error.status === 405) return "This server cannot reload mounts.";
  if (error.status === 401 || error.status === 403) return `The token does not allow changes (${error.message}).`;
  return error.message;
}

function mood(mount) {
  if (["ready", "loaded"].includes(mount.state)) return mount.last_error ? "stopped" : "good";
  return ["failed", "degraded", "broken", "open"].includes(mount.state) ? "bad" : "stopped";
}
