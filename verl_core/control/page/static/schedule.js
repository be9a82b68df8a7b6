// The schedule of a weight, in words and as a small drawing. Its forms are those of the config:
// {linear | cosine: {from, to, steps, start}} and {step: {from, at: [[step, weight], …]}}.

import { h, number, svg } from "./dom.js";

const [WIDTH, HEIGHT, EDGE] = [72, 20, 4];

const parts = (schedule) => Object.entries(schedule)[0] ?? ["", {}];

/** "linear from 2 to 0.5 over 200 steps". */
export function words(schedule) {
  const [kind, body] = parts(schedule);
  if (kind === "step") {
    return [`${number(body.from)} at first`, ...body.at.map(([step, weight]) => `${number(weight)} from step ${step}`)].join(", ");
  }
  const start = body.start ? `, from step ${body.start} on` : "";
  return `${kind} from ${number(body.from)} to ${number(body.to)} over ${body.steps} steps${start}`;
}

/** The highest weight in it. */
export function peak(schedule) {
  const [kind, body] = parts(schedule);
  return kind === "step" ? Math.max(body.from, ...body.at.map(([, weight]) => weight)) : Math.max(body.from, body.to);
}

/** Step -> weight; and the step after which nothing moves. */
function curve(schedule) {
  const [kind, body] = parts(schedule);
  if (kind === "step") {
    const value = (step) => body.at.findLast(([from]) => from <= step)?.[1] ?? body.from;
    return { value, end: body.at.at(-1)?.[0] ?? 1 };
  }
  const start = body.start ?? 0;
  const way = (share) => (kind === "cosine" ? (1 - Math.cos(Math.PI * share)) / 2 : share);
  const value = (step) => body.from + (body.to - body.from) * way(Math.min(1, Math.max(0, (step - start) / body.steps)));
  return { value, end: start + body.steps };
}

/** A line of it with a dot at a step. */
export function sketch(schedule, step) {
  const { value, end } = curve(schedule);
  const last = Math.max(1, end * 1.1);
  const values = Array.from({ length: 61 }, (_, i) => value((last * i) / 60));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (at) => EDGE + (Math.min(at, last) / last) * (WIDTH - 2 * EDGE);
  const y = (weight) => HEIGHT - EDGE - ((weight - low) / (high - low || 1)) * (HEIGHT - 2 * EDGE);
  const path = values.map((weight, i) => `${i ? "L" : "M"}${x((last * i) / 60).toFixed(1)} ${y(weight).toFixed(1)}`).join("");
  return h("span", { class: "sketch" }, svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
    svg("path", { d: path, class: "line" }), svg("circle", { cx: x(step), cy: y(value(step)), r: 3 })));
}
