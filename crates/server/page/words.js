// Formats numbers, and creates elements.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** A count; large ones are rounded. */
export function count(number) {
  return number < 10_000 ? whole.format(number) : short.format(number);
}

/** Bytes: one number of three digits, and its unit. */
export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1000 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  const digits = number < 10 && unit > 0 ? 1 : 0;
  return `${number.toFixed(digits)} ${units[unit]}`;
}

/** A time: a number, and its unit. */
export function time(seconds) {
  if (seconds < 0.001) return [`${Math.round(seconds * 1e6)}`, "µs"];
  if (seconds < 0.01) return [(seconds * 1e3).toFixed(1), "ms"];
  if (seconds < 1) return [`${Math.round(seconds * 1e3)}`, "ms"];
  if (seconds < 10) return [seconds.toFixed(1), "s"];
  if (seconds < 100) return [`${Math.round(seconds)}`, "s"];
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return [`${minutes} min ${Math.floor(seconds % 60)}`, "s"];
  return [`${Math.floor(minutes / 60)} h ${minutes % 60}`, "min"];
}

export function span(seconds) {
  return time(seconds).join(" ");
}

export function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** An element with a class and text. */
export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function find(id) {
  return document.getElementById(id);
}

/** Sets text only if it differs, so that screen readers do not read it out again. */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** A row of a table: text, numbers and elements. */
export function row(...cells) {
  const made = element("tr");
  for (const cell of cells) {
    const data = element("td", typeof cell === "number" || cell?.number ? "n" : "");
    if (cell instanceof Node) data.append(cell);
    else data.textContent = typeof cell === "number" ? count(cell) : (cell?.number ?? cell);
    made.append(data);
  }
  return made;
}

/** Clears a canvas and gives it its size on the screen. */
export function canvas(target) {
  const scale = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = target;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (target.width !== wide || target.height !== high) {
    target.width = wide;
    target.height = high;
  }
  const pen = target.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

/** A colour of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
