// Plots as inline SVG. A chart draws itself into a box and returns what moves it to another learning rate.

function element(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function set(node, attributes) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
}

function canvas(box, height) {
  const width = Math.max(box.clientWidth, 240);
  box.replaceChildren();
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}` }, box);
  return { svg, width, height };
}

function scale(from, to) {
  const span = from[1] - from[0] || 1;
  return (value) => to[0] + ((value - from[0]) / span) * (to[1] - to[0]);
}

// Round numbers inside a range, about so many.
function ticks([low, high], about) {
  const rough = (high - low) / about;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

function padded(values, share) {
  const known = values.filter((value) => value !== null);
  const low = Math.min(...known), high = Math.max(...known);
  const pad = share * (high - low) || 0.05 * Math.abs(high) || 1;
  return [low - pad, high + pad];
}

const brief = (value) => String(Number(value.toPrecision(4)));
const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}%`;

// A plot's axes, with what is on the vertical one said above it, where it can be read.
function axes(box, height, { x, y, xLabel, yLabel, yFormat = brief, xTicks }) {
  const { svg, width } = canvas(box, height);
  const area = { left: 46, right: width - 14, top: 30, bottom: height - 42 };
  const toX = scale(x, [area.left, area.right]), toY = scale(y, [area.bottom, area.top]);
  for (const value of ticks(y, 4)) {
    element("line", { class: "axis", x1: area.left, x2: area.right, y1: toY(value), y2: toY(value) }, svg);
    element("text", { x: area.left - 8, y: toY(value) + 4, "text-anchor": "end" }, svg, yFormat(value));
  }
  for (const value of xTicks ?? ticks(x, width < 400 ? 4 : 6)) {
    element("text", { x: toX(value), y: area.bottom + 18, "text-anchor": "middle" }, svg, brief(value));
  }
  element("text", { x: (area.left + area.right) / 2, y: height - 6, "text-anchor": "middle" }, svg, xLabel);
  element("text", { x: 0, y: 12, class: "strong" }, svg, yLabel);
  return { svg, toX, toY, area };
}

const path = (points) => "M" + points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");

function curveChart(box, figures) {
  const { etas, coverage, band, eta, error, level } = figures;
  const y = padded([...band.flat(), level], 0.06);
  const { svg, toX, toY, area } = axes(box, 270, {
    x: [etas[0], etas.at(-1)], y: [Math.max(y[0], 0), Math.min(y[1], 1)],
    xLabel: "learning rate η", yLabel: `coverage of ${brief(100 * level)}% sets`, yFormat: (v) => percent(v, 0),
  });
  const inside = (value) => Math.min(Math.max(toX(value), area.left), area.right);
  if (error !== null) {
    const left = inside(eta - error);
    element("rect", { class: "band", x: left, y: area.top, width: inside(eta + error) - left,
      height: area.bottom - area.top }, svg);
  }
  const upper = etas.map((at, g) => [toX(at), toY(band[g][1])]);
  const lower = etas.map((at, g) => [toX(at), toY(band[g][0])]).reverse();
  element("path", { class: "band", d: path([...upper, ...lower]) + "Z" }, svg);
  element("line", { class: "target", x1: area.left, x2: area.right, y1: toY(level), y2: toY(level) }, svg);
  element("line", { class: "target", x1: toX(eta), x2: toX(eta), y1: area.top, y2: area.bottom }, svg);
  element("path", { class: "line", d: path(etas.map((at, g) => [toX(at), toY(coverage[g])])) }, svg);
  // Below the curve on its left, where it never comes; unless the axis is there.
  const side = toX(eta) - area.left > 100 ? -1 : 1;
  element("text", { class: "strong", x: inside(eta + side * (error ?? 0)) + side * 7, y: area.bottom - 8,
    "text-anchor": side < 0 ? "end" : "start" }, svg, `η = ${brief(eta)}`);
  const dot = element("circle", { class: "ring", r: 6 }, svg);
  return (at) => set(dot, { cx: toX(at.eta), cy: toY(at.coverage) });
}

function levelsChart(box, figures) {
  const { level, levels: { edges, counts, rows } } = figures;
  const heights = (row) => row.map((count, k) => count / rows / (edges[k + 1] - edges[k]));
  const most = Math.max(1.5, ...counts.flatMap(heights));
  const { svg, toX, toY, area } = axes(box, 270, {
    x: [0, 1], y: [0, Math.min(most, 3)], xLabel: "critical level", yLabel: "samples, relative to flat",
    xTicks: [0, 0.2, 0.4, 0.6, 0.8, 1],
  });
  const bars = edges.slice(1).map((edge, k) => element("rect", {
    class: edge <= level + 1e-9 ? "bar" : "missed", x: toX(edges[k]) + 0.5,
    width: Math.max(toX(edge) - toX(edges[k]) - 1, 1) }, svg));
  const expected = rows / (edges.length - 1), chance = 1.96 / Math.sqrt(expected);
  const top = toY(Math.min(1 + chance, Math.min(most, 3))), bottom = toY(Math.max(1 - chance, 0));
  element("rect", { class: "band", x: area.left, width: area.right - area.left, y: top, height: bottom - top }, svg);
  element("line", { class: "target", x1: area.left, x2: area.right, y1: toY(1), y2: toY(1) }, svg);
  return (at) => heights(at.counts).forEach((value, k) => {
    const y = Math.max(toY(value), area.top);
    set(bars[k], { y, height: area.bottom - y });
  });
}

// All on one axis where that shows every interval; else each on its own, with its zero if that is near.
function forestChart(box, figures) {
  const { parameters } = figures;
  const ends = (p) => [...p.low, ...p.high, ...(p.own ?? [])].filter((value) => value !== null);
  const widths = parameters.map((p) => Math.max(...p.high) - Math.min(...p.low));
  const all = padded(parameters.flatMap(ends), 0.03);
  const middle = [...widths].sort((a, b) => a - b)[Math.floor(widths.length / 2)];
  const shared = all[1] - all[0] < Math.min(25 * middle, 400 * Math.min(...widths));
  const narrow = box.clientWidth < 560, longest = Math.max(...parameters.map((p) => p.name.length));
  const left = narrow ? 8 : Math.min(Math.max(7.2 * longest + 20, 60), 200), numbers = narrow ? 8 : 170;
  const row = narrow ? 46 : 32, top = 8;
  const { svg, width, height } = canvas(box, top + row * parameters.length + (shared ? 26 : 6));
  const across = [left + 6, width - numbers];
  if (shared) {
    const toX = scale(all, across);
    for (const value of ticks(all, narrow ? 4 : 8)) {
      element("line", { class: value === 0 ? "target" : "axis", x1: toX(value), x2: toX(value), y1: top,
        y2: height - 22 }, svg);
      element("text", { x: toX(value), y: height - 6, "text-anchor": "middle" }, svg, brief(value));
    }
  }
  const moves = parameters.map((p, k) => {
    const range = shared ? all : padded(ends(p), 0.08), toX = scale(range, across);
    const line = top + row * k + (narrow ? 34 : row / 2), words = narrow ? top + row * k + 18 : line + 4;
    const most = Math.floor((narrow ? width - 160 : left - 12) / 7.2);
    const shown = p.name.length > most ? p.name.slice(0, most - 1) + "…" : p.name;
    const label = element("text", { class: "strong", x: narrow ? 0 : left - 10, y: words,
      "text-anchor": narrow ? "start" : "end" }, svg, shown);
    element("title", {}, label, p.name);
    const said = element("text", { x: width, y: words, "text-anchor": "end" }, svg);
    if (!shared && range[0] < 0 && range[1] > 0) {
      element("line", { class: "target", x1: toX(0), x2: toX(0), y1: line - 9, y2: line + 9 }, svg);
    }
    const home = figures.etas.indexOf(figures.eta);
    element("line", { class: "ghost", x1: toX(p.low[home]), x2: toX(p.high[home]), y1: line, y2: line }, svg);
    const bar = element("line", { class: "interval", y1: line, y2: line, "data-parameter": k }, svg);
    const dot = element("circle", { class: "mean", r: 4, cy: line }, svg);
    if (p.own) {
      element("path", { class: "own", d: path([[toX(p.own[0]), line + 9], [toX(p.own[1]), line + 9]]) }, svg);
    }
    return (at) => {
      const { low, mean, high } = at.parameters[k], digits = Math.max(p.decimals - 1, 0);
      set(bar, { x1: toX(low), x2: toX(high) });
      set(dot, { cx: toX(mean) });
      said.textContent = `${low.toFixed(digits)} to ${high.toFixed(digits)}`;
    };
  });
  box.dataset.shared = shared;
  return (at) => moves.forEach((move) => move(at));
}

function traceChart(box, figures, column, yLabel, yFormat, target) {
  const records = figures.trace.filter((record) => record[column] !== null);
  const known = records.map((record) => record[column]);
  const last = Math.max(figures.trace.at(-1)[0], 2);
  const { svg, toX, toY, area } = axes(box, 210, {
    x: [1, last], y: padded([...known, target], 0.12), xLabel: "iteration", yLabel, yFormat,
    xTicks: ticks([1, last], Math.min(last, 6)).filter(Number.isInteger),
  });
  element("line", { class: "target", x1: area.left, x2: area.right, y1: toY(target), y2: toY(target) }, svg);
  const points = records.map((record) => [toX(record[0]), toY(record[column])]);
  if (points.length > 1) element("path", { class: "line", d: path(points) }, svg);
  for (const [cx, cy] of points) element("circle", { class: "dot", r: 3.5, cx, cy }, svg);
  return () => {};
}
