/** The server: requests, and the stream of changes, which comes back by itself after a break. */

/** What the server refused, with the step that helps. `status` is 0 when it did not answer. */
export class ServerError extends Error {
  constructor(status, { reason = "", message = "", remedy = "" } = {}) {
    super(message || `the server answered ${status}`);
    this.status = status;
    this.reason = reason;
    this.remedy = remedy;
  }
}

/** Returns the JSON of an address below /api/. */
export async function get(path, { signal } = {}) {
  return answer(() => fetch(`/api/${path}`, { signal, headers: { accept: "application/json" }, cache: "no-store" }));
}

/** Runs an action; the token shows that this page asked for it. */
export async function post(path, body) {
  const session = await get("session");
  return answer(() => fetch(`/api/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-trialpod-token": session.token },
    body: JSON.stringify(body),
  }));
}

async function answer(request) {
  let response;
  try {
    response = await request();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, { message: "The server does not answer.", remedy: "Is `trialpod ui` still running?" });
  }
  let body;
  try {
    body = await response.json();
  } catch {
    throw new ServerError(response.status, { message: `The server answered ${response.status} without JSON.` });
  }
  if (body.error?.reason === "SignedOut") location.assign(`/login${location.hash}`);
  if (!response.ok) throw new ServerError(response.status, body.error ?? {});
  return body;
}

export const experimentPath = (id, rest = "") => `experiments/${encodeURIComponent(id)}${rest}`;

const RETRY_MS = [500, 1000, 2000, 4000, 8000];

/**
 * Follows an experiment. After a break everything is read again (`reload`), since a new server knows no old cursor.
 * `on.delta(data)`, `on.stale(seconds or null, words)`, `on.reload()` -> promise, `cursor()`.
 */
export class Follower {
  constructor(id, cursor, on) {
    this.id = id;
    this.cursor = cursor;
    this.on = on;
    this.tries = 0;
    this.open();
  }

  open() {
    const query = encodeURIComponent(this.cursor() ?? "");
    this.source = new EventSource(`/api/${experimentPath(this.id, `/events?after=${query}`)}`);
    this.source.addEventListener("open", () => {
      this.tries = 0;
      this.on.stale(null);
    });
    // A delta says nothing of staleness: that the data is stale comes as one too.
    this.source.addEventListener("delta", (event) => this.on.delta(JSON.parse(event.data)));
    this.source.addEventListener("stale", (event) => {
      const { since } = JSON.parse(event.data);
      this.on.stale(since, since ? "The experiment's data does not change although it should; its operator may be away." : "");
    });
    this.source.addEventListener("error", () => this.again());
  }

  again(words = "The server does not answer; this is the last state it sent. Trying again …") {
    this.source.close();
    if (this.closed || this.timer) return;
    this.on.stale(this.lost ??= Date.now() / 1000, words);
    const wait = RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)];
    this.timer = setTimeout(async () => {
      this.timer = 0;
      try {
        await this.on.reload();
        this.lost = undefined;
        if (!this.closed) this.open();
      } catch (error) {
        if (this.closed) return;
        this.again(error.status === 401 ? "The server was restarted and does not know this page: open the link that it printed." : undefined);
      }
    }, wait);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.source.close();
  }
}
