// Users and their queues, and each sequence.

import { count, element, find, plural, row, say, span } from "./words.js";

/** Most marks for sequences; the numbers count those beyond. */
const PIPS = 12;

/** One mark for each sequence: filled if it has a slot. */
function pips(user) {
  const box = element("span", "queue");
  const marks = element("span", "pips");
  marks.setAttribute("aria-hidden", "true");
  const all = user.running + user.waiting;
  // If there are more than fit, both kinds keep at least one mark.
  const running = all <= PIPS ? user.running : Math.max(Math.round((user.running / all) * PIPS), Math.min(user.running, 1));
  for (let i = 0; i < Math.min(all, PIPS); i += 1) marks.append(element("i", i < running ? "on" : ""));
  const paused = user.paused > 0 ? `, ${count(user.paused)} paused` : "";
  // The numbers stand below the marks where both do not fit side by side.
  box.append(marks, element("span", "", `${count(user.running)}, ${count(user.waiting)}${paused}`));
  return box;
}

/** The part of its answer that a sequence writes; nothing where the server does not know. */
function writes({ part, calls }) {
  if (part === null) return "–";
  return part === "call" && calls > 1 ? `call ${count(calls)}` : part;
}

/** A user's name, which may be long. */
function named(user) {
  const name = element("div", "user", user.name);
  name.title = user.name;
  return name;
}

export function people() {
  const details = find("sequences").closest("details");
  let last = null;

  function sequences() {
    if (!last || !details.open) return;
    const rows = last.sequences.map((one) =>
      row(`${one.id}`, one.user, one.stage, writes(one.answer), one.prompt, one.computed, { number: `${count(one.output)} of ${count(one.output_max)}` }, one.answer.reasoning, one.answer.calls, { number: span(one.waited) }, one.preempted),
    );
    if (last.sequences_left_out > 0) rows.push(row(`and ${count(last.sequences_left_out)} more`));
    find("sequences").replaceChildren(...rows);
  }

  details.addEventListener("toggle", sequences);
  return {
    update(now) {
      last = now;
      const { running, waiting, awaiting_prefix: awaiting, paused } = now.stats;
      const parts = [`${count(running)} running`, `${count(waiting)} waiting`];
      if (awaiting > 0) parts.push(`${count(awaiting)} for a common prefix`);
      if (paused > 0) parts.push(`${count(paused)} paused`);
      say(find("users-note"), parts.join(" · "));
      const rows = now.users.slice(0, 10).map((user) =>
        row(named(user), pips(user), user.waiting_tokens, { number: user.waiting > 0 ? span(user.longest_wait) : "–" }, { number: count(user.service) }),
      );
      const more = now.users_left_out + Math.max(now.users.length - 10, 0);
      if (more > 0) rows.push(row(`and ${plural(more, "user", "users")} more`));
      if (rows.length === 0) rows.push(row("none"));
      find("users").replaceChildren(...rows);
      sequences();
    },
  };
}
