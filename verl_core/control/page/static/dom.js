// Elements, numbers and words. No markup is ever made from a string: what a model wrote is text.

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes (null and false leave one out, `on` listens), then children. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, heard] of Object.entries(value)) element.addEventListener(event, heard);
    } else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** The element of an id. */
export const at = (id) => document.getElementById(id);

/** A dot in the colour of a mount. */
export function dot(colour) {
  const mark = h("span", { class: "dot", "aria-hidden": "true" });
  mark.style.background = `var(--${colour})`;
  return mark;
}

/** Put new children in the place of the old ones, unless nothing has changed. */
export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Set a text only where it differs, so that screen readers do not repeat it. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A text in which commands stand between backticks. */
export const coded = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

/** Show or hide. */
export function show(element, is_shown) {
  element.hidden = !is_shown;
}

/** 0.264, −1.5, 12; "–" where there is no number. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  let text;
  if (size !== 0 && (size >= 1e6 || size < 10 ** -digits / 2)) text = value.toExponential(1);
  else text = value.toFixed(size >= 1000 ? Math.max(digits - 3, 0) : digits);
  if (text.includes(".") && !text.includes("e")) text = text.replace(/\.?0+$/, "");
  return (text === "-0" ? "0" : text).replace("-", "−");
}

/** With its sign: +0.2, −0.1. */
export const signed = (value, digits = 3) => (value > 0 ? "+" : "") + number(value, digits);

/** 3.4 ms, 1.2 s. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${number(seconds * 1e6, 0)} µs`;
  return seconds < 1 ? `${number(seconds * 1000, 1)} ms` : `${number(seconds, 2)} s`;
}

/** 12,000 */
export const count = (value) => (Number.isFinite(value) ? value.toLocaleString("en") : "–");

/** "1 change", "3 changes". */
export const plural = (many, word) => `${count(many)} ${word}${many === 1 ? "" : "s"}`;

/** An ISO time as the reader's own clock shows it. */
export function clock(text) {
  const time = new Date(text ?? NaN);
  if (Number.isNaN(time.getTime())) return text ?? "–";
  const day = new Date().toDateString() === time.toDateString() ? {} : { month: "short", day: "numeric" };
  return time.toLocaleString(undefined, { ...day, hour: "2-digit", minute: "2-digit" });
}

let said_timer = 0;

/** Say what has happened, to eyes and to screen readers. */
export function say(text, kind = "good") {
  const place = at("said");
  replace(place, h("p", { class: kind }, text));
  clearTimeout(said_timer);
  said_timer = setTimeout(() => replace(place), 9000);
}
