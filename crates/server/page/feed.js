// The frames that the server sends, while the page is visible.

const RETRY_MS = [500, 1000, 2000, 5000];
const KEY = "motet-key";

/**
 * Calls `on.frame` with each frame, `on.state` with "live", "paused" or "lost" and why, and
 * `on.needsKey` when the server rejects the key or needs one.
 */
export function feed(on) {
  let abort = null;
  let failures = 0;
  let timer = 0;
  let paused = false;
  let locked = false;

  async function open() {
    close();
    if (paused || locked || document.hidden) return;
    const own = (abort = new AbortController());
    try {
      const key = sessionStorage.getItem(KEY);
      const headers = key ? { authorization: `Bearer ${key}` } : {};
      const response = await fetch("/watch", { headers, signal: own.signal, cache: "no-store" });
      if (response.status === 401 || response.status === 403) {
        locked = true;
        const why = key || response.status === 403 ? await reason(response) : "";
        sessionStorage.removeItem(KEY);
        on.needsKey(why);
        return;
      }
      if (!response.ok) throw new Error(await reason(response));
      failures = 0;
      on.state("live", "");
      for await (const frame of frames(response.body)) on.frame(frame);
      throw new Error("the server has ended");
    } catch (error) {
      if (own.signal.aborted) return;
      on.state("lost", error.message);
      timer = setTimeout(open, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
      failures += 1;
    }
  }

  function close() {
    clearTimeout(timer);
    abort?.abort();
    abort = null;
  }

  document.addEventListener("visibilitychange", open);
  open();
  return {
    pause(isPaused) {
      paused = isPaused;
      if (paused) on.state("paused", "");
      open();
    },
    unlock(key) {
      sessionStorage.setItem(KEY, key);
      locked = false;
      open();
    },
  };
}

/** The server's reason for a rejection. */
async function reason(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `status ${response.status}`;
}

/** Server-sent events, each of one line of JSON. */
async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
    }
  }
}
