// Throughput and latency, now and over the last minutes.

import { canvas, colour, count, element, find, time } from "./words.js";

/** Frames that a curve goes back: two minutes. */
const FRAMES = 240;
/** Seconds over which rates are computed. */
const WINDOW = 2;

const FIGURES = [
  { name: "Output", unit: "tokens/s", of: (rate) => rate("output_tokens"), show: plain },
  { name: "Evaluated", unit: "tokens/s", of: (rate) => rate("evaluated_tokens"), show: plain },
  { name: "Prompts from cache", unit: "", of: hits, show: percent, most: 1 },
  { name: "First token", unit: "median", of: (_, now) => now.first_token.p50, show: duration, more: (now) => now.first_token },
  { name: "Each further token", unit: "median", of: (_, now) => now.each_token.p50, show: duration, more: (now) => now.each_token },
  { name: "Device busy", unit: "", of: busy, show: percent, most: 1 },
];

function plain(value) {
  return [count(value), ""];
}

function percent(value) {
  return Number.isNaN(value) ? ["–", ""] : [`${Math.round(value * 100)}`, "%"];
}

function duration(value) {
  return value > 0 ? time(value) : ["–", ""];
}

/** The share of recent prompt tokens that was cached. */
function hits(rate, now, before) {
  const asked = now.stats.prompt_tokens - before.stats.prompt_tokens;
  return asked > 0 ? (now.stats.cached_tokens - before.stats.cached_tokens) / asked : NaN;
}

function busy(rate) {
  return Math.min(rate("busy"), 1);
}

/** Draws the figures of each frame. */
export function figures() {
  const list = find("figures");
  const shown = FIGURES.map((figure) => {
    const box = element("div");
    const data = element("dd");
    const [value, unit, curve] = [element("span", "value", "–"), element("span", "unit", figure.unit), element("canvas")];
    curve.setAttribute("aria-hidden", "true");
    data.append(value, unit, curve);
    box.append(element("dt", "", figure.name), data);
    list.append(box);
    return { ...figure, value, unitText: unit, curve, series: [] };
  });
  const past = [];
  return {
    update(now) {
      if (past.length > 0 && now.at < past[past.length - 1].at) past.length = 0;
      past.push({ at: now.at, stats: now.stats });
      while (past.length > 2 && now.at - past[1].at >= WINDOW) past.shift();
      const before = past[0];
      const seconds = now.at - before.at;
      const rate = (key) => (seconds > 0 ? (now.stats[key] - before.stats[key]) / seconds : 0);
      for (const figure of shown) {
        const value = figure.of(rate, now, before);
        figure.series.push(value);
        if (figure.series.length > FRAMES) figure.series.shift();
        const [text, unit] = figure.show(value);
        figure.value.textContent = text;
        figure.unitText.textContent = [unit, caption(figure, now)].filter(Boolean).join(" ");
      }
      this.draw();
    },
    draw() {
      for (const figure of shown) curve(figure);
    },
  };
}

function caption(figure, now) {
  const more = figure.more?.(now);
  if (!more) return figure.unit;
  return more.count > 0 ? `· 95 % ${time(more.p95).join(" ")}` : "";
}

function curve({ curve: target, series, most }) {
  const { pen, width, height } = canvas(target);
  const known = series.filter((value) => !Number.isNaN(value));
  const top = most ?? Math.max(...known, 1e-9) * 1.1;
  const step = width / (FRAMES - 1);
  const x = (i) => width - (series.length - 1 - i) * step;
  const y = (value) => height - 1.5 - (value / top) * (height - 4);
  pen.strokeStyle = colour("rule");
  pen.beginPath();
  pen.moveTo(0, height - 0.5);
  pen.lineTo(width, height - 0.5);
  pen.stroke();
  pen.strokeStyle = colour("accent");
  pen.lineWidth = 1.25;
  pen.lineJoin = "round";
  pen.beginPath();
  let down = false;
  series.forEach((value, i) => {
    if (Number.isNaN(value)) return;
    if (down) pen.lineTo(x(i), y(value));
    else pen.moveTo(x(i), y(value));
    down = true;
  });
  pen.stroke();
}
