// The server: requests with the token, its refusals as errors in words, and its stream of changes.

const KEY = "verl-reward-token";
const SECONDS = 20;

let token = read_token();

function read_token() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // a browser that keeps nothing: the token lives as long as the page
  }
}

export const has_token = () => token !== "";

/** Keep a token for this tab; "" forgets it. */
export function keep_token(text) {
  token = text;
  try {
    if (text) sessionStorage.setItem(KEY, text);
    else sessionStorage.removeItem(KEY);
  } catch {
    // as above
  }
}

/** The server has answered, and refused. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the server answered ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

/** Nobody has answered. */
export class Lost extends Error {}

function headers_of(more) {
  const headers = new Headers(more);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  return headers;
}

async function request(path, options = {}) {
  try {
    return await fetch(path, { cache: "no-store", ...options, headers: headers_of(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Lost(error.message);
  }
}

/** The JSON of an address below the page's own. */
export async function get(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of [value].flat()) if (one !== null && one !== undefined && one !== "") parameters.append(name, one);
  }
  const asked = parameters.size ? `${path}?${parameters}` : path;
  return answered(await request(asked, { signal: AbortSignal.timeout?.(SECONDS * 1000) }));
}

/** Change something. `why` is {author, reason, revision}; what it lacks is not sent. */
export async function change(method, path, body, why = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (why.author) headers["X-Verl-Author"] = encodeURIComponent(why.author);
  if (why.reason) headers["X-Verl-Reason"] = encodeURIComponent(why.reason);
  if (why.revision) headers["If-Match"] = `"${why.revision}"`;
  return answered(await request(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) }));
}

async function answered(response) {
  let found;
  try {
    found = await response.json();
  } catch {
    found = null; // cut off, or not JSON: a proxy's own page, for one
  }
  if (response.ok && found !== null) return found;
  if (response.ok || (found === null && response.status >= 500)) throw new Lost(`HTTP ${response.status}`);
  throw new Refused(response.status, found ?? {});
}

/**
 * Hear every change of the weights. `heard` is called with what GET …/weights answers, `opened` when
 * the stream has begun; returns when it has ended, throws Refused or Lost.
 */
export async function listen(path, { last, heard, opened, signal }) {
  const headers = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = String(last);
  const response = await request(path, { headers, signal });
  if (!response.ok || !response.body) await answered(response);
  opened();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Lost(error.message);
    }
    if (part.done) return;
    const events = (rest + part.value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (data.length) heard(JSON.parse(data.map((line) => line.slice(5).trimStart()).join("\n")));
    }
  }
}
