// Puts the page together.

import { feed } from "./feed.js";
import { figures } from "./figures.js";
import { memory } from "./memory.js";
import { people } from "./people.js";
import { score } from "./score.js";
import { trie } from "./trie.js";
import { find, say, span } from "./words.js";

const parts = [figures(), score(), people(), trie(), memory()];
let last = null;

function show(frame) {
  last = frame;
  say(find("model"), frame.model);
  say(find("state"), frame.state);
  say(find("uptime"), `up ${span(frame.at)}`);
  document.title = `Motet · ${frame.model}`;
  find("lamp").classList.toggle("lit", frame.state === "busy");
  for (const part of parts) part.update(frame);
  document.documentElement.dataset.frames = Number(document.documentElement.dataset.frames ?? 0) + 1;
}

const form = find("key-form");
const source = feed({
  frame: show,
  state(state, why) {
    find("main").classList.toggle("stale", state === "lost");
    if (state === "lost") say(find("state"), `not connected: ${why}; trying again`);
    if (state === "paused") say(find("state"), "paused");
    if (state !== "live") find("lamp").classList.remove("lit");
  },
  needsKey(why) {
    say(find("state"), "waiting for a key");
    if (why) say(find("key-note"), why);
    form.hidden = false;
    find("key").focus();
  },
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  form.hidden = true;
  source.unlock(find("key").value);
  find("key").value = "";
});

const pause = find("pause");
pause.addEventListener("click", () => {
  const paused = pause.getAttribute("aria-pressed") !== "true";
  pause.setAttribute("aria-pressed", String(paused));
  source.pause(paused);
});

// Drawings depend on the size and the colours of the page.
function redraw() {
  if (last) for (const part of parts) part.draw?.();
}
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
