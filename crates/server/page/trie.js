// The trie: tokens from left to right; branches of a common prefix are stacked.

import { bytes, count, element, find, plural, row, say, span } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const TIERS = ["device", "device and a copy", "host memory", "disk"];
const ROWS_MAX = 24;
const AXIS = 16;
const SALT_GAP = 3;

/** A node's row of numbers, with names. */
function named([id, parent, [salt, tier, from, tokens, size, holders, hits, idle, children, snapshot, kept]]) {
  return { id, parent, salt, tier, from, tokens, size, holders, hits, idle, children, snapshot, kept, below: [], leaves: 0 };
}

/** Links nodes, and counts the leaves below each. Parents come before their children. */
function grow(rows) {
  const nodes = rows.map(named);
  for (const node of nodes) if (node.parent !== null) nodes[node.parent].below.push(node);
  for (const node of [...nodes].reverse()) {
    node.leaves = node.leaves || 1;
    if (node.parent !== null) nodes[node.parent].leaves += node.leaves;
  }
  // A stable order, so that known nodes stay in place.
  const order = (a, b) => a.salt - b.salt || (a.id < b.id ? -1 : 1);
  for (const node of nodes) node.below.sort(order);
  const tops = nodes.filter((node) => node.parent === null).sort(order);
  return { nodes, tops };
}

function describe(node) {
  const held = node.holders > 0 ? `held by ${node.holders}` : `idle for ${plural(node.idle, "use", "uses")}`;
  const uses = node.tier < 2 ? `used ${plural(node.hits, "time", "times")}, ${held}` : "";
  const parts = [
    `${plural(node.tokens, "token", "tokens")} from token ${count(node.from)}`,
    bytes(node.size),
    `in ${TIERS[node.tier]}`.replace("in d", "on d"),
    uses,
    restorePoint(node),
    node.children > 0 ? `${plural(node.children, "branch", "branches")} below` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

/** The state that a sequence can resume from at the end of a node; nothing where any token will do. */
function restorePoint({ snapshot, kept }) {
  if (snapshot > 0) return `${kept ? "kept restore point" : "restore point"} with ${bytes(snapshot)} of state`;
  return kept ? "a restore point was asked for here" : "";
}

export function trie() {
  const target = find("trie");
  const detail = find("trie-detail");
  const idleText = detail.textContent;
  const layer = svg("g");
  const boxes = new Map();
  let nodes = [];
  let chosen = null;
  const [labels, marks] = [svg("g"), svg("g")];
  const points = svg("g");
  points.setAttribute("class", "points");
  target.append(hatching(), layer, points, labels, marks);

  function update(now) {
    const grown = grow(now.nodes);
    nodes = grown.nodes;
    draw(grown);
    const parts = [plural(now.stats.device.segments, "node", "nodes") + " on the device", plural(now.stats.device.tokens, "token", "tokens")];
    if (now.salts > 1) parts.push(`${count(now.salts)} salts`);
    if (now.nodes_left_out > 0) parts.push(`${count(now.nodes_left_out)} smaller or colder not shown, ${bytes(now.bytes_left_out)}`);
    if (now.copies_left_out > 0) parts.push(`${plural(now.copies_left_out, "copy", "copies")} not shown`);
    say(find("trie-note"), parts.join(" · "));
    find("legend-points").hidden = !now.stats.restore;
    if (find("nodes").closest("details").open) table();
  }

  function draw({ nodes: all, tops }) {
    const { clientWidth: width, clientHeight: height } = target;
    if (width === 0) return;
    const longest = Math.max(...all.map((node) => node.from + node.tokens), 1);
    const leaves = tops.reduce((sum, node) => sum + node.leaves, 0);
    const gaps = new Set(tops.map((node) => node.salt)).size - 1;
    const line = Math.min(ROWS_MAX, (height - AXIS - Math.max(gaps, 0) * SALT_GAP) / Math.max(leaves, 1));
    const x = (token) => (token / longest) * (width - 2) + 1;
    const idlest = Math.max(...all.map((node) => node.idle), 1);
    const seen = new Set();
    labels.replaceChildren();
    points.replaceChildren();
    const place = (node, top) => {
      seen.add(node.id);
      node.box = { x: x(node.from), y: top, w: Math.max(x(node.from + node.tokens) - x(node.from), 1), h: node.leaves * line };
      paint(node, idlest);
      name(node);
      if (node.snapshot > 0) point(node);
      let below = top;
      for (const child of node.below) {
        place(child, below);
        below += child.leaves * line;
      }
    };
    let top = 0;
    let salt = tops[0]?.salt;
    for (const node of tops) {
      if (node.salt !== salt) top += SALT_GAP;
      salt = node.salt;
      place(node, top);
      top += node.leaves * line;
    }
    for (const [id, box] of boxes) {
      if (seen.has(id)) continue;
      box.remove();
      boxes.delete(id);
    }
    ruler(width, height, longest, x);
    choose(nodes.find((node) => node.id === chosen) ?? null);
  }

  function paint(node, idlest) {
    let box = boxes.get(node.id);
    if (!box) {
      box = svg("rect");
      box.dataset.id = node.id;
      boxes.set(node.id, box);
      layer.append(box);
    }
    const { x, y, w, h } = node.box;
    const inset = h > 4 ? 0.5 : 0;
    set(box, { x, y: y + inset, width: w, height: Math.max(h - 2 * inset, 0.75) });
    const kind = node.tier === 3 ? "disk" : node.tier === 2 ? "host" : node.holders > 0 ? "held" : "device";
    box.setAttribute("class", kind);
    // Heat: recently used nodes are full, the coldest are pale.
    const heat = 1 - Math.log1p(node.idle) / Math.log1p(idlest);
    const opacity = kind === "device" ? 0.22 + 0.55 * heat : kind === "host" ? 0.45 + 0.55 * heat : 0.9;
    box.setAttribute("fill-opacity", opacity.toFixed(2));
    if (node.tier === 1 && node.holders === 0) {
      box.setAttribute("fill", "url(#hatch)");
      box.setAttribute("class", "copied");
      box.setAttribute("fill-opacity", (0.4 + 0.6 * heat).toFixed(2));
    }
  }

  /** Marks the end of a node that a sequence can resume at. */
  function point({ box: { x, y, w, h }, kept }) {
    const mark = svg("rect");
    const wide = Math.min(kept ? 4 : 2.5, w);
    set(mark, { x: x + w - wide, y: y + (h > 4 ? 0.5 : 0), width: wide, height: Math.max(h - (h > 4 ? 1 : 0), 0.75), class: "point" });
    points.append(mark);
  }

  /** Labels a large box. */
  function name({ box: { x, y, w, h }, tokens, hits, tier }) {
    if (w < 175 || h < 26 || tier > 1) return;
    const text = svg("text");
    set(text, { x: x + 8, y: y + 17, class: "inside" });
    text.textContent = `${plural(tokens, "token", "tokens")} · used ${plural(hits, "time", "times")}`;
    labels.append(text);
  }

  function ruler(width, height, longest, x) {
    const raw = longest / Math.max(2, Math.floor(width / 110));
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((times) => times * unit).find((one) => one >= raw);
    marks.replaceChildren();
    for (let token = 0; token <= longest; token += step) {
      const tick = svg("line");
      set(tick, { x1: x(token), x2: x(token), y1: height - AXIS, y2: height - AXIS + 4, class: "axis" });
      const text = svg("text");
      const last = x(token) > width - 30;
      set(text, { x: x(token) + (last ? -3 : 3), y: height - 3, "text-anchor": last ? "end" : "start" });
      text.textContent = token === 0 ? "token 0" : count(token);
      marks.append(tick, text);
    }
  }

  function choose(node) {
    layer.querySelector(".chosen")?.classList.remove("chosen");
    chosen = node?.id ?? null;
    if (node) {
      const box = boxes.get(node.id);
      box?.classList.add("chosen");
    }
    say(detail, node ? describe(node) : idleText);
  }

  function table() {
    const largest = [...nodes].sort((a, b) => b.size - a.size).slice(0, 40);
    const rows = largest.map((node) => row(TIERS[node.tier], node.from, node.tokens, { number: bytes(node.size) }, { number: node.snapshot > 0 ? bytes(node.snapshot) : "–" }, node.holders, node.hits, node.children));
    find("nodes").replaceChildren(...rows);
  }

  target.addEventListener("pointermove", (event) => {
    const id = event.target.dataset?.id;
    choose(id ? nodes.find((node) => node.id === id) : null);
  });
  target.addEventListener("pointerleave", () => choose(null));
  target.addEventListener("keydown", (event) => {
    const next = step(nodes, nodes.find((node) => node.id === chosen), event.key);
    if (next === undefined) return;
    event.preventDefault();
    choose(next);
  });
  target.addEventListener("blur", () => choose(null));
  find("nodes").closest("details").addEventListener("toggle", table);
  return { update };
}

/** The node that an arrow key leads to; undefined for other keys. */
function step(nodes, from, key) {
  const tops = nodes.filter((node) => node.parent === null);
  if (key === "Escape") return null;
  if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(key)) return undefined;
  if (!from) return tops[0] ?? null;
  const above = from.parent === null ? null : nodes[from.parent];
  if (key === "ArrowLeft") return above ?? from;
  if (key === "ArrowRight") return from.below[0] ?? from;
  const beside = above ? above.below : tops;
  const at = beside.indexOf(from) + (key === "ArrowUp" ? -1 : 1);
  return beside[at] ?? from;
}

/** The fill of nodes that are on the device and in a copy. */
function hatching() {
  const definitions = svg("defs");
  const pattern = svg("pattern");
  set(pattern, { id: "hatch", width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  const ground = svg("rect");
  set(ground, { width: 4, height: 4, class: "hatch-ground" });
  const line = svg("line");
  set(line, { x1: 0, x2: 0, y1: 0, y2: 4, class: "hatch" });
  pattern.append(ground, line);
  definitions.append(pattern);
  return definitions;
}

function svg(name) {
  return document.createElementNS(SVG, name);
}

function set(target, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    target.setAttribute(name, typeof value === "number" ? value.toFixed(2) : value);
  }
}
