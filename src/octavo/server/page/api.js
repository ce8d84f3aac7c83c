// Talks to the server that the page came from: with the key, if it asks for one, and as streams of events.

const KEY = "octavo.key";
const url = (path) => new URL(path, document.baseURI);
let key = recall();
let asking = null;
let askForKey = async () => null;

function recall() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function keep(value) {
  key = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // It is known until the page is left.
  }
}

/** `ask(refused)` resolves to a key; `refused` is whether one was tried before. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** `fetch` with the key. Asks for it, once for all calls that lack it, and tries again. Throws `ServerError`. */
export async function call(path, options = {}) {
  for (;;) {
    const used = key;
    const headers = { ...options.headers, ...(used ? { authorization: `Bearer ${used}` } : {}) };
    const response = await fetch(url(path), { ...options, headers });
    if (response.ok) return response;
    if (response.status !== 401) throw new ServerError(await told(response), response.status);
    if (key === used) {
      asking ??= askForKey(used !== null).then(keep).finally(() => (asking = null));
      await asking;
    }
  }
}

/** What the server says went wrong, in one line. */
async function told(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status} ${response.statusText}`.trim();
  }
}

/** Posts `body`, and yields the data of each event of the answer. */
export async function* stream(path, body, signal) {
  const options = body && {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  const response = await call(path, { ...options, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const lines = event.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
