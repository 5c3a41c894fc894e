// Charts as inline SVG. Each chart function draws into a box and returns a function that updates the chart for another
// learning rate.

function element(name, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  setAttributes(node, attributes);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function setAttributes(node, attributes) {
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

// Round numbers inside a range, approximately `count` of them.
function ticks([low, high], count) {
  const spacing = (high - low) / count;
  if (!(spacing > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(spacing));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= spacing);
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) values.push(k * step);
  return values;
}

// The range of the values, extended on either side by a share of its width.
function paddedRange(values, share) {
  const finite = values.filter((value) => value !== null);
  const low = Math.min(...finite), high = Math.max(...finite);
  const padding = share * (high - low) || 0.05 * Math.abs(high) || 1;
  return [low - padding, high + padding];
}

const formatNumber = (value) => String(Number(value.toPrecision(4)));
const formatPercent = (value, digits = 1) => `${(100 * value).toFixed(digits)}%`;

// Axes with the label of the vertical one above it, where it can be read horizontally.
function axes(box, height, { x, y, xLabel, yLabel, yFormat = formatNumber, xTicks }) {
  const { svg, width } = canvas(box, height);
  const area = { left: 46, right: width - 14, top: 30, bottom: height - 42 };
  const toX = scale(x, [area.left, area.right]), toY = scale(y, [area.bottom, area.top]);
  for (const value of ticks(y, 4)) {
    element("line", { class: "axis", x1: area.left, x2: area.right, y1: toY(value), y2: toY(value) }, svg);
    element("text", { x: area.left - 8, y: toY(value) + 4, "text-anchor": "end" }, svg, yFormat(value));
  }
  for (const value of xTicks ?? ticks(x, width < 400 ? 4 : 6)) {
    element("text", { x: toX(value), y: area.bottom + 18, "text-anchor": "middle" }, svg, formatNumber(value));
  }
  element("text", { x: (area.left + area.right) / 2, y: height - 6, "text-anchor": "middle" }, svg, xLabel);
  element("text", { x: 0, y: 12, class: "strong" }, svg, yLabel);
  return { svg, toX, toY, area };
}

const path = (points) => "M" + points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");

function curveChart(box, figures) {
  const { etas, coverage, band, eta, eta_se: error, level } = figures;
  const y = paddedRange([...band.flat(), level], 0.06);
  const { svg, toX, toY, area } = axes(box, 270, {
    x: [etas[0], etas.at(-1)], y: [Math.max(y[0], 0), Math.min(y[1], 1)], xLabel: "learning rate η",
    yLabel: `coverage of ${formatNumber(100 * level)}% sets`, yFormat: (v) => formatPercent(v, 0),
  });
  const clippedX = (value) => Math.min(Math.max(toX(value), area.left), area.right);
  if (error !== null) {
    const left = clippedX(eta - error);
    element("rect", { class: "band", x: left, y: area.top, width: clippedX(eta + error) - left,
      height: area.bottom - area.top }, svg);
  }
  const upper = etas.map((value, g) => [toX(value), toY(band[g][1])]);
  const lower = etas.map((value, g) => [toX(value), toY(band[g][0])]).reverse();
  element("path", { class: "band", d: path([...upper, ...lower]) + "Z" }, svg);
  element("line", { class: "target", x1: area.left, x2: area.right, y1: toY(level), y2: toY(level) }, svg);
  element("line", { class: "target", x1: toX(eta), x2: toX(eta), y1: area.top, y2: area.bottom }, svg);
  element("path", { class: "line", d: path(etas.map((value, g) => [toX(value), toY(coverage[g])])) }, svg);
  // The decreasing curve leaves room for the label at the lower left, unless the vertical axis is too near.
  const side = toX(eta) - area.left > 100 ? -1 : 1;
  element("text", { class: "strong", x: clippedX(eta + side * (error ?? 0)) + side * 7, y: area.bottom - 8,
    "text-anchor": side < 0 ? "end" : "start" }, svg, `η = ${formatNumber(eta)}`);
  const marker = element("circle", { class: "marker", r: 6 }, svg);
  return (state) => setAttributes(marker, { cx: toX(state.eta), cy: toY(state.coverage) });
}

function levelsChart(box, figures) {
  const { level, levels: { edges, counts, n_replicates: nReplicates } } = figures;
  const densities = (bins) => bins.map((count, k) => count / nReplicates / (edges[k + 1] - edges[k]));
  const maximum = Math.min(Math.max(1.5, ...counts.flatMap(densities)), 3);
  const { svg, toX, toY, area } = axes(box, 270, {
    x: [0, 1], y: [0, maximum], xLabel: "critical level", yLabel: "density of replicates",
    xTicks: [0, 0.2, 0.4, 0.6, 0.8, 1],
  });
  const bars = edges.slice(1).map((edge, k) => element("rect", {
    class: edge <= level + 1e-9 ? "bar" : "missed", x: toX(edges[k]) + 0.5,
    width: Math.max(toX(edge) - toX(edges[k]) - 1, 1) }, svg));
  // 95% range of the density in a bin under a uniform distribution of critical levels.
  const expected = nReplicates / (edges.length - 1), halfWidth = 1.96 / Math.sqrt(expected);
  const top = toY(Math.min(1 + halfWidth, maximum)), bottom = toY(Math.max(1 - halfWidth, 0));
  element("rect", { class: "band", x: area.left, width: area.right - area.left, y: top, height: bottom - top }, svg);
  element("line", { class: "target", x1: area.left, x2: area.right, y1: toY(1), y2: toY(1) }, svg);
  return (state) => densities(state.counts).forEach((density, k) => {
    const y = Math.max(toY(density), area.top);
    setAttributes(bars[k], { y, height: area.bottom - y });
  });
}

// The calibrated interval of every parameter, with its mean.
function intervalChart(box, figures) {
  const k = figures.etas.indexOf(figures.eta);
  const rows = figures.parameters.map((p) => {
    const [low, high] = p.calibrated ?? [p.low[k], p.high[k]];
    return { name: p.name, low, high, mean: p.mean[k], range: [low, high, p.mean[k]] };
  });
  const draw = forestChart(box, rows, 0);
  draw.rows.forEach(({ svg, toX, y }, r) => {
    const { low, high, mean } = rows[r];
    element("line", { class: "interval", x1: toX(low), x2: toX(high), y1: y, y2: y }, svg);
    element("circle", { class: "mean", r: 4, cx: toX(mean), cy: y }, svg);
  });
  return () => {};
}

// Intervals of the posterior at one learning rate for all parameters, with their numbers.
function jointChart(box, figures) {
  const { parameters } = figures, calibrated = figures.etas.indexOf(figures.eta);
  const rows = parameters.map((p) => ({ name: p.name, range: [...p.low, ...p.high] }));
  const draw = forestChart(box, rows, 170);
  const updates = draw.rows.map(({ svg, toX, y, textY }, k) => {
    const p = parameters[k], digits = Math.max(p.decimals - 1, 0);
    element("line", { class: "reference", x1: toX(p.low[calibrated]), x2: toX(p.high[calibrated]), y1: y, y2: y }, svg);
    const bar = element("line", { class: "interval", y1: y, y2: y, "data-parameter": k }, svg);
    const dot = element("circle", { class: "mean", r: 4, cy: y }, svg);
    const numbers = element("text", { x: draw.width, y: textY, "text-anchor": "end" }, svg);
    return (state) => {
      const { low, mean, high } = state.parameters[k];
      setAttributes(bar, { x1: toX(low), x2: toX(high) });
      setAttributes(dot, { cx: toX(mean) });
      numbers.textContent = `${low.toFixed(digits)} to ${high.toFixed(digits)}`;
    };
  });
  return (state) => updates.forEach((update) => update(state));
}

// Names and axes of one row per parameter. The rows share one axis if every interval is visible on it; otherwise each has
// its own, with a mark at zero if zero is in its range.
function forestChart(box, rows, numbersWidth) {
  const finite = ({ range }) => range.filter((value) => value !== null);
  const widths = rows.map((row) => Math.max(...finite(row)) - Math.min(...finite(row)));
  const range = paddedRange(rows.flatMap(finite), 0.03);
  const medianWidth = [...widths].sort((a, b) => a - b)[Math.floor(widths.length / 2)];
  const shared = range[1] - range[0] < Math.min(25 * medianWidth, 40 * Math.min(...widths));
  const narrow = box.clientWidth < 560, longestName = Math.max(...rows.map(({ name }) => name.length));
  const left = narrow ? 8 : Math.min(Math.max(7.2 * longestName + 20, 60), 260), right = narrow ? 8 : numbersWidth + 8;
  const rowHeight = (narrow ? 46 : 32) + (shared ? 0 : 20), top = 8;
  const { svg, width, height } = canvas(box, top + rowHeight * rows.length + (shared ? 26 : 6));
  const across = [left + 6, width - right];
  if (shared) {
    const toX = scale(range, across);
    for (const value of ticks(range, narrow ? 4 : 8)) {
      element("line", { class: value === 0 ? "target" : "axis", x1: toX(value), x2: toX(value), y1: top,
        y2: height - 22 }, svg);
      element("text", { x: toX(value), y: height - 6, "text-anchor": "middle" }, svg, formatNumber(value));
    }
  }
  box.dataset.shared = shared;
  const maxLength = Math.floor((narrow ? width - numbersWidth : left - 12) / 7.2);
  return { width, rows: rows.map((row, k) => {
    const y = top + rowHeight * k + (narrow ? 34 : 16), textY = narrow ? y - 16 : y + 4;
    const name = row.name.length > maxLength ? row.name.slice(0, maxLength - 1) + "…" : row.name;
    const label = element("text", { class: "strong", x: narrow ? 0 : left - 10, y: textY,
      "text-anchor": narrow ? "start" : "end" }, svg, name);
    element("title", {}, label, row.name);
    const domain = shared ? range : paddedRange(finite(row), 0.08), toX = scale(domain, across);
    if (!shared) {
      element("line", { class: "axis", x1: across[0], x2: across[1], y1: y + 9, y2: y + 9 }, svg);
      if (domain[0] < 0 && domain[1] > 0) {
        element("line", { class: "target", x1: toX(0), x2: toX(0), y1: y - 9, y2: y + 9 }, svg);
      }
      for (const value of ticks(domain, narrow ? 3 : 5)) {
        element("text", { class: "small", x: toX(value), y: y + 22, "text-anchor": "middle" }, svg, formatNumber(value));
      }
    }
    return { svg, toX, y, textY };
  }) };
}

// One column of the trace (1: learning rate, 2: coverage) against the iteration.
function traceChart(box, figures, column, yLabel, yFormat, target) {
  const records = figures.trace.filter((record) => record[column] !== null);
  const values = records.map((record) => record[column]);
  const last = Math.max(figures.trace.at(-1)[0], 2);
  const { svg, toX, toY, area } = axes(box, 210, {
    x: [1, last], y: paddedRange([...values, target], 0.12), xLabel: "iteration", yLabel, yFormat,
    xTicks: ticks([1, last], Math.min(last, 6)).filter(Number.isInteger),
  });
  element("line", { class: "target", x1: area.left, x2: area.right, y1: toY(target), y2: toY(target) }, svg);
  const points = records.map((record) => [toX(record[0]), toY(record[column])]);
  if (points.length > 1) element("path", { class: "line", d: path(points) }, svg);
  for (const [cx, cy] of points) element("circle", { class: "dot", r: 3.5, cx, cy }, svg);
  return () => {};
}
