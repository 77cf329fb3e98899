// Memory by tier, and counters since the start.

import { bytes, count, element, find, plural, say } from "./words.js";

/** A tier's name, its parts in bytes, and its legend. */
function tiers({ device, host, disk, restore }) {
  const shown = [
    {
      name: "Device",
      budget: device.budget,
      used: device.sealed + device.reserved,
      parts: [
        ["held", device.held],
        ["reserved", device.reserved],
        ["idle", device.sealed - device.held],
      ],
      legend: [
        ["held", "held", device.held],
        ["reserved", "reserved to grow into", device.reserved],
        ["device", "idle", device.sealed - device.held],
        // A part of the cached bytes, of models that cannot resume after any token.
        ...(restore ? [["point", `in ${plural(restore.snapshots, "restore point", "restore points")}`, restore.snapshot_bytes]] : []),
      ],
    },
  ];
  const beside = (name, kind, tier) => {
    if (tier.budget === 0) return;
    const legend = [[kind, plural(tier.copies, "copy", "copies"), null], [null, plural(tier.hits, "hit", "hits"), null]];
    shown.push({ name, budget: tier.budget, used: tier.used, parts: [[kind, tier.used]], legend });
  };
  beside("Host", "host", host);
  beside("Disk", "disk", disk);
  return shown;
}

function draw(tier) {
  const box = element("div", "tier");
  const name = element("p", "name");
  name.append(element("span", "", tier.name), element("span", "", `${bytes(tier.used)} of ${bytes(tier.budget)}`));
  const bar = element("div", "bar");
  bar.setAttribute("aria-hidden", "true");
  for (const [kind, size] of tier.parts) {
    const part = element("i", kind);
    part.style.width = `${(100 * size) / Math.max(tier.budget, 1)}%`;
    bar.append(part);
  }
  const legend = element("ul", "legend");
  for (const [kind, text, size] of tier.legend) {
    const item = element("li");
    if (kind) item.append(element("i", `key ${kind}`));
    item.append(size === null ? text : `${text} ${bytes(size)}`);
    legend.append(item);
  }
  box.append(name, bar, legend);
  return box;
}

/// Restore points, of models that cannot resume after any token.
function restored(restore) {
  if (!restore) return [];
  const share = restore.prompts > 0 ? `${Math.round((100 * restore.resumed) / restore.prompts)} %` : "–";
  return [
    ["points taken", restore.taken],
    ["given up", restore.given_up],
    ["prompts resumed", share],
    ["recomputed", restore.recomputed_tokens],
  ];
}

export function memory() {
  return {
    update({ stats, part_sums: parts }) {
      find("tiers").replaceChildren(...tiers(stats).map(draw));
      say(find("memory-note"), stats.active_bytes > 0 ? `the device counts ${bytes(stats.active_bytes)} in use` : "");
      const sums = [
        ["finished", stats.finished],
        ["failed", stats.failed],
        ["rejected", stats.rejected],
        ["preempted", stats.preempted],
        ["evicted", stats.device.evicted],
        ["steps", stats.steps],
        ["output", stats.output_tokens],
        ["evaluated", stats.evaluated_tokens],
        ["rebuilds", stats.rebuilds],
        ...(parts.calls + parts.reasoned > 0 ? [["calls", parts.calls], ["reasoned", parts.reasoned]] : []),
        ...restored(stats.restore),
      ];
      const rows = sums.map(([name, value]) => {
        const pair = element("div");
        const text = typeof value === "string" ? value : count(value);
        pair.append(element("dt", "", name), element("dd", "", text));
        return pair;
      });
      find("sums").replaceChildren(...rows);
    },
  };
}
