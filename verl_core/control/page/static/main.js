// The page: who is asked, how often, and what is said when nobody answers.

import { Lost, Refused, get, has_token, keep_token, listen } from "./api.js";
import { Curves } from "./curves.js";
import { at, clock, coded, h, replace, say, setText, show } from "./dom.js";
import { Mounts } from "./mounts.js";
import { Samples } from "./samples.js";
import { Together } from "./together.js";
import { Weights } from "./weights.js";

const API = "api/v1/reward";
const EVERY = { series: 2000, providers: 3000, samples: 5000, correlation: 8000, weights: 2000 };
const FIRST_WAIT = 1000;
const LONGEST_WAIT = 10000;
const COLOURS = 8;

const curves = new Curves();
const weights = new Weights(() => {
  curves.history = weights.history;
  curves.firstRevision = weights.more ? 0 : (weights.history.at(-1)?.revision ?? 0);
  curves.draw();
  due.providers = 0;
});
const mounts = new Mounts(() => (due.providers = 0));
const samples = new Samples();
const together = new Together();

let run = null; // what GET …/run answered last
let lost_at = null; // since when nobody answers
let wait = FIRST_WAIT;
let news = ""; // what else is to be said when somebody answers again
let is_hearing = false; // the stream of changes is open
let can_hear = true; // the server has one
let due = {}; // what is to be asked next, and when

const KINDS = {
  training: "verl-reward · a run that trains",
  serving: "verl-reward · a server that scores",
  folder: "verl-reward · the folder of a run, to read only",
  none: "verl-reward",
};

// -- what is asked -------------------------------------------------------------------------------

async function readRun() {
  const found = await get(`${API}/run`);
  if (run && found.run_id !== run.run_id) {
    clear();
    news = `Another run answers here now: ${found.run_id}. The page begins anew.`;
  } else if (run && lost_at !== null && found.server !== run.server) {
    news = "The server was started anew."; // only now: of several workers each has its own name
  }
  run = found;
  const step = found.axis === "step" ? found.step ?? null : null;
  Object.assign(weights, { kind: found.kind, read_only: found.read_only, running: step });
  mounts.read_only = found.read_only;
  drawRun();
}

async function readSeries() {
  const is_new = curves.take(await get(`${API}/run/series`, curves.query));
  if (!is_new) return;
  curves.draw(coloured(run.mounts));
  if (weights.now) weights.draw();
}

async function readProviders() {
  const found = coloured((await get(`${API}/providers`)).providers);
  weights.mounts = found;
  mounts.take(found);
  samples.setMounts(found);
}

async function readCorrelation() {
  const answer = await get(`${API}/run/correlation`);
  if (JSON.stringify(answer.marks) !== JSON.stringify(curves.opposed)) {
    curves.opposed = answer.marks;
    curves.draw(coloured(run.mounts));
  }
  together.take(answer, coloured(run.mounts));
}

const readWeights = async () => weights.take(await get(`${API}/weights`));

/** Mounts with the names of their colours: rewards in their order, gates that of gates. */
function coloured(found) {
  let rewards = 0;
  return found.map((mount) => ({ ...mount, colour: mount.role === "gate" ? "gate" : `c${rewards++ % COLOURS}` }));
}

/** Ask what is due. */
async function turn() {
  await readRun();
  const jobs = [
    ["providers", readProviders], ["weights", readWeights], ["series", readSeries],
    ["correlation", readCorrelation], ["samples", () => samples.look()],
  ];
  for (const [name, job] of jobs) {
    if (name === "weights" && is_hearing && weights.now) continue;
    if (Date.now() < (due[name] ?? 0)) continue;
    due[name] = Date.now() + EVERY[name];
    await job();
  }
}

async function go() {
  while (true) {
    if (!document.hidden) {
      try {
        await turn();
        reached();
      } catch (error) {
        if (error instanceof Refused && error.status === 401) return login();
        if (error instanceof Lost || error.name === "TimeoutError") unreached();
        else unwell(error);
      }
    }
    await pause(lost_at ? wait : 1000);
  }
}

/** Hear changes of the weights as they are made; where there is no stream, they are asked for. */
async function hear() {
  while (can_hear) {
    try {
      await listen(`${API}/weights/events`, {
        last: weights.now?.revision,
        heard: (answer) => run && answer.run_id === run.run_id && weights.take(answer),
        opened: () => (is_hearing = true),
      });
    } catch (error) {
      if (error instanceof Refused && [404, 405].includes(error.status)) can_hear = false;
      if (error instanceof Refused && error.status === 401) return;
    } finally {
      is_hearing = false;
    }
    await pause(2000);
  }
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// -- what is said --------------------------------------------------------------------------------

function reached() {
  const seconds = lost_at === null ? null : Math.round((Date.now() - lost_at) / 1000);
  if (seconds !== null) due = {};
  if (news || seconds !== null) say(`${news}${seconds === null ? "" : ` Connected again after ${seconds} s.`}`.trim());
  news = "";
  lost_at = null;
  wait = FIRST_WAIT;
  show(at("trouble"), false);
  show(at("all"), true);
  const pill = at("connection");
  pill.className = `pill ${run.read_only ? "stopped" : "running"}`;
  setText(pill, run.read_only ? "read only" : "live");
}

function unreached() {
  if (lost_at === null) lost_at = Date.now();
  else wait = Math.min(wait * 1.5, LONGEST_WAIT);
  const pill = at("connection");
  pill.className = "pill bad";
  setText(pill, "connection lost");
  setText(at("trouble"), `Nobody answers since ${clock(new Date(lost_at).toISOString())}. What is shown is how it was then; the page keeps trying, and changes must wait.`);
  show(at("trouble"), true);
}

function unwell(error) {
  console.error(error);
  setText(at("trouble"), error instanceof Refused ? `The server refuses: ${error.message}` : `A fault of this page: ${error.message}. Reload it; if it comes again, report it.`);
  show(at("trouble"), true);
}

function drawRun() {
  const name = run.name ?? run.run_id;
  setText(at("name"), name);
  setText(at("kind"), KINDS[run.kind] ?? KINDS.none);
  document.title = `${run.axis === "step" && run.step != null ? `step ${run.step} · ` : ""}${name} · verl-reward`;
  const facts = [
    run.axis === "step" && run.step != null && (run.steps ? `step ${run.step} of ${run.steps}` : `step ${run.step}`),
    run.kind === "folder" && run.status, run.model && `model ${run.model}`, `run ${run.run_id}`,
    run.started && `began ${clock(run.started)}`, run.ended && `ended ${clock(run.ended)}`,
    run.ready === false && run.kind !== "folder" && "still loading", `version ${run.version}`,
  ].filter(Boolean);
  if (facts.join() !== drawRun.last) replace(at("facts"), facts.map((fact) => h("li", {}, fact)));
  drawRun.last = facts.join();
  const notes = [run.note, run.read_only && `Read only: ${run.read_only}.`, run.error && `It ended with: ${run.error}`].filter(Boolean);
  if (notes.join() !== drawRun.noted) replace(at("note"), coded(notes.join(" ")));
  drawRun.noted = notes.join();
  show(at("note"), notes.length > 0);
  show(at("forget"), has_token());
}

function clear() {
  for (const part of [curves, weights, mounts, samples, together]) part.clear();
  due = {};
}

// -- the token -----------------------------------------------------------------------------------

function login() {
  show(at("all"), false);
  show(at("login"), true);
  setText(at("name"), "A token is needed");
  const pill = at("connection");
  pill.className = "pill stopped";
  setText(pill, "not signed in");
  setText(at("login-error"), has_token() ? "That is not the token of this server." : "");
  keep_token("");
  at("token").focus();
}

at("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keep_token(at("token").value.trim());
  at("token").value = "";
  show(at("login"), false);
  start();
});

at("forget").addEventListener("click", () => {
  keep_token("");
  location.reload();
});

document.addEventListener("visibilitychange", () => !document.hidden && (due = {}));

function start() {
  go();
  hear();
}

start();
