// Connects the slider over the learning rate to the charts.

const figures = JSON.parse(document.getElementById("figures").textContent);
const get = (id) => document.getElementById(id);
const { etas } = figures;
const calibratedIndex = etas.indexOf(figures.eta);
const hasCurve = etas.length > 1;

// Coverage, critical levels and intervals at a learning rate, interpolated between those of the grid.
function stateAt(eta) {
  let upper = etas.findIndex((value) => value >= eta);
  if (upper < 0) upper = etas.length - 1;
  const lower = etas[upper] === eta || upper === 0 ? upper : upper - 1;
  const share = upper === lower ? 0 : (eta - etas[lower]) / (etas[upper] - etas[lower]);
  const interpolate = (values) => (share ? (1 - share) * values[lower] + share * values[upper] : values[lower]);
  const { counts } = figures.levels;
  return {
    eta,
    coverage: interpolate(figures.coverage),
    counts: counts.length ? counts[lower].map((_, k) => interpolate(counts.map((bins) => bins[k]))) : [],
    parameters: figures.parameters.map((p) => ({
      low: interpolate(p.low), mean: interpolate(p.mean), high: interpolate(p.high),
    })),
  };
}

// Median over parameters of the width of the interval, relative to its width at the calibrated learning rate.
function relativeWidth(state) {
  const ratios = figures.parameters
    .map((p, k) => {
      const { low, high } = state.parameters[k];
      return (high - low) / (p.high[calibratedIndex] - p.low[calibratedIndex]);
    })
    .sort((a, b) => a - b);
  const middle = ratios.length / 2;
  return ratios.length % 2 ? ratios[Math.floor(middle)] : (ratios[middle - 1] + ratios[middle]) / 2;
}

// A search of one iteration has no course to draw.
const hasTrace = figures.trace.length > 1;
for (const part of document.querySelectorAll("[data-drawn]")) {
  part.hidden = ("curve" in part.dataset && !hasCurve) || ("trace" in part.dataset && !hasTrace);
}
get("no-curve").hidden = hasCurve;

const charts = {
  intervals: (box) => intervalChart(box, figures),
  forest: (box) => jointChart(box, figures),
  "trace-eta": (box) => traceChart(box, figures, 1, "learning rate η", formatNumber, figures.eta),
  "trace-coverage": (box) => traceChart(box, figures, 2, "coverage", (v) => formatPercent(v, 1), figures.level),
  ...(hasCurve ? { curve: curveChart, levels: levelsChart } : {}),
};
const updates = {};
let current = stateAt(figures.eta);

function show(eta) {
  current = stateAt(eta);
  for (const update of Object.values(updates)) update(current);
  get("reading-eta").textContent = formatNumber(eta);
  get("reading-coverage").textContent = formatPercent(current.coverage);
  get("reading-width").textContent = relativeWidth(current).toFixed(2);
  get("reset").disabled = eta === figures.eta;
  get("slider").setAttribute("aria-valuetext", `${formatNumber(eta)}, coverage ${formatPercent(current.coverage)}`);
}

// Charts are redrawn for the width of their box, so that the text has the same size at every width.
const widths = {};
const observer = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (!contentRect.width || widths[target.id] === Math.round(contentRect.width)) continue;
    widths[target.id] = Math.round(contentRect.width);
    updates[target.id] = charts[target.id](target, figures);
    updates[target.id](current);
  }
  for (const id of ["intervals", "forest"]) {
    const caption = get(`${id}-caption`);
    caption.dataset.text ??= caption.textContent;
    const ownScales = get(id).dataset.shared === "false";
    caption.textContent = caption.dataset.text + (ownScales ? " Each parameter has its own scale; a dotted line marks zero." : "");
  }
});
for (const id of Object.keys(charts)) observer.observe(get(id));

const slider = get("slider"), steps = Number(slider.max);
const toStep = scale([etas[0], etas.at(-1)], [0, steps]), calibratedStep = Math.round(toStep(figures.eta));
function reset() {
  slider.value = calibratedStep;
  show(figures.eta);
}
slider.addEventListener("input", () => {
  const value = Number(slider.value);
  show(value === calibratedStep ? figures.eta : etas[0] + (value / steps) * (etas.at(-1) - etas[0]));
});
get("reset").addEventListener("click", () => {
  reset();
  slider.focus();
});
addEventListener("beforeprint", reset);
reset();
