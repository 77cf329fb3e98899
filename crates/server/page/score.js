// Steps as a score: a line for each voice, a column for each step.

import { canvas, colour, count, find, plural, say, span } from "./words.js";

const COLUMN = 7;
const LINE = 12;
const GUTTER = 44;
/** The height of the lane with the durations of steps. */
const LANE = 34;
/** A prompt chunk of this many tokens is as tall as a line. */
const TALL = 512;

/** Parts of an answer whose beginnings are marked, and their legends. */
const MARKS = ["reasoning", "call"];

export function score() {
  const target = find("score");
  const note = find("steps-note");
  let columns = [];
  const lines = new Map();

  /** Gives each sequence a line while it is visible; several may share one, one after another. */
  function assignLines(most) {
    const spans = new Map();
    columns.forEach((step, i) => {
      for (const [sequence] of step.spans) spans.set(sequence, { first: spans.get(sequence)?.first ?? i, last: i });
    });
    for (const [sequence, line] of lines) if (!spans.has(sequence) || line >= most) lines.delete(sequence);
    const ends = new Array(most).fill(-2);
    for (const [sequence, line] of lines) ends[line] = Math.max(ends[line], spans.get(sequence).last);
    for (const [sequence, { first, last }] of spans) {
      if (lines.has(sequence)) continue;
      const line = ends.findIndex((end) => end < first - 1);
      if (line < 0) continue;
      lines.set(sequence, line);
      ends[line] = last;
    }
  }

  function draw() {
    const { pen, width, height } = canvas(target);
    const most = Math.floor((height - LANE - 10) / LINE);
    const columnsMax = Math.floor((width - GUTTER) / COLUMN);
    columns = columns.slice(-columnsMax);
    assignLines(most);
    const [ink, soft, accent, staff] = ["ink", "soft", "accent", "staff"].map(colour);
    staves(pen, width, most, staff);
    names(pen, soft);
    const left = (i) => width - (columns.length - i) * COLUMN;
    columns.forEach((step, i) => {
      if (step.gap) gap(pen, left(i), most * LINE, soft);
      for (const [sequence, tokens, drafted] of step.spans) {
        const line = lines.get(sequence);
        if (line === undefined) continue;
        const bottom = (line + 1) * LINE - 1.5;
        if (tokens - drafted === 1) {
          pen.fillStyle = step.reasons?.has(sequence) ? soft : ink;
          pen.fillRect(left(i) + 1, bottom - 6.5, COLUMN - 3, 3.5);
          // A grace note: the draft that the step verified.
          if (drafted > 0) pen.fillRect(left(i) + 2, bottom - 10, COLUMN - 5, 2);
        } else {
          const tall = Math.max(3, Math.min(1, Math.log2(tokens) / Math.log2(TALL)) * (LINE - 2));
          pen.fillStyle = accent;
          pen.fillRect(left(i) + 0.5, bottom - tall, COLUMN - 1, tall);
        }
      }
    });
    columns.forEach((step, i) => {
      for (const [sequence, part] of step.parts ?? []) {
        const line = lines.get(sequence);
        if (line !== undefined) begins(pen, part, left(i) + COLUMN / 2 - 0.5, (line + 1) * LINE - 6, { ink, accent });
      }
    });
    times(pen, height, left);
  }

  /** Marks the step in which an answer's reasoning or a call begins. */
  function begins(pen, part, x, y, { ink, accent }) {
    pen.beginPath();
    if (part === "reasoning") {
      pen.arc(x, y, 3.2, 0, 2 * Math.PI);
      pen.strokeStyle = ink;
      pen.lineWidth = 1.25;
      pen.stroke();
      return;
    }
    for (const [dx, dy] of [[0, -4], [4, 0], [0, 4], [-4, 0]]) pen.lineTo(x + dx, y + dy);
    pen.closePath();
    pen.fillStyle = accent;
    pen.fill();
  }

  /** Puts the parts that have begun at the last step that their sequence was in. */
  function mark(now) {
    const reasons = new Set(now.sequences.filter((one) => one.answer.part === "reasoning").map((one) => one.id));
    for (const step of columns.slice(-now.steps.length)) step.reasons = reasons;
    for (const [sequence, part] of now.parts) {
      if (!MARKS.includes(part)) continue;
      find(`legend-${part}`).hidden = false;
      const step = columns.findLast((step) => step.spans.some(([one]) => one === sequence));
      if (step) (step.parts ??= []).push([sequence, part]);
    }
  }

  function staves(pen, width, most, staff) {
    pen.fillStyle = staff;
    for (let line = 0; line < most; line += 1) pen.fillRect(GUTTER, line * LINE + 5.5, width - GUTTER, 1);
  }

  /** Who sings on each line, if it ran in the last steps. */
  function names(pen, soft) {
    const recent = new Set(columns.slice(-30).flatMap((step) => step.spans.map(([sequence]) => sequence)));
    const singers = new Map();
    // Of those that share a line the youngest ran last.
    for (const [sequence, line] of lines) if (recent.has(sequence)) singers.set(line, Math.max(sequence, singers.get(line) ?? 0));
    pen.fillStyle = soft;
    pen.font = "10px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const [line, sequence] of singers) pen.fillText(`${sequence}`, GUTTER - 8, line * LINE + 6.5);
  }

  function gap(pen, x, bottom, soft) {
    pen.strokeStyle = soft;
    pen.globalAlpha = 0.35;
    pen.setLineDash([1, 3]);
    pen.beginPath();
    pen.moveTo(x - 0.5, 0);
    pen.lineTo(x - 0.5, bottom);
    pen.stroke();
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  }

  /** The duration of each step, and its scale. */
  function times(pen, height, left) {
    const longest = Math.max(...columns.map((step) => step.seconds), 1e-6);
    const [pale, accent, soft] = ["slate-pale", "accent", "soft"].map(colour);
    columns.forEach((step, i) => {
      const tall = Math.max(1, (step.seconds / longest) * (LANE - 8));
      pen.fillStyle = step.failed ? accent : pale;
      pen.fillRect(left(i) + 0.5, height - tall, COLUMN - 1.5, tall);
    });
    pen.fillStyle = soft;
    pen.font = "10px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    if (columns.length > 0) pen.fillText(span(longest), GUTTER - 8, height - LANE + 8);
  }

  return {
    update(now) {
      now.steps.forEach((step, i) => columns.push({ ...step, gap: i === 0 && now.steps_before > 0 }));
      if (now.steps.length > 0) mark(now);
      if (now.steps.some((step) => step.drafted > 0)) find("legend-draft").hidden = false;
      this.draw();
      const last = now.steps[now.steps.length - 1];
      if (!last) return say(note, now.stats.running > 0 ? "none just now" : "nothing to do");
      const prompt = last.prefill > 0 ? `, ${plural(last.prefill, "prompt token", "prompt tokens")}` : "";
      const draft = last.drafted > 0 ? `, ${count(last.accepted)} of ${plural(last.drafted, "draft token", "draft tokens")}` : "";
      const voices = plural(last.spans.length + last.left_out, "voice", "voices");
      say(note, `step ${count(last.number)}: ${voices}, ${plural(last.decode, "single token", "single tokens")}${draft}${prompt}, ${span(last.seconds)}`);
    },
    draw,
  };
}
