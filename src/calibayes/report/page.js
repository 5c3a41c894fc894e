// The page's one moving part: the learning rate.

const figures = JSON.parse(document.getElementById("figures").textContent);
const get = (id) => document.getElementById(id);
const { etas } = figures;
const home = etas.indexOf(figures.eta);
const hasCurve = etas.length > 1;

// Everything at one learning rate, between those of the grid.
function reading(eta) {
  let upper = etas.findIndex((at) => at >= eta);
  if (upper < 0) upper = etas.length - 1;
  const lower = etas[upper] === eta || upper === 0 ? upper : upper - 1;
  const share = upper === lower ? 0 : (eta - etas[lower]) / (etas[upper] - etas[lower]);
  const mix = (values) => (share ? (1 - share) * values[lower] + share * values[upper] : values[lower]);
  const { counts } = figures.levels;
  return {
    eta,
    coverage: mix(figures.coverage),
    counts: counts.length ? counts[lower].map((_, k) => mix(counts.map((row) => row[k]))) : [],
    parameters: figures.parameters.map((p) => ({ low: mix(p.low), mean: mix(p.mean), high: mix(p.high) })),
  };
}

// The middle one of how much wider the intervals are than at eta-hat.
function width(at) {
  const ratios = figures.parameters
    .map((p, k) => (at.parameters[k].high - at.parameters[k].low) / (p.high[home] - p.low[home]))
    .sort((a, b) => a - b);
  const middle = ratios.length / 2;
  return ratios.length % 2 ? ratios[Math.floor(middle)] : (ratios[middle - 1] + ratios[middle]) / 2;
}

for (const part of document.querySelectorAll("[data-drawn]")) part.hidden = "curve" in part.dataset && !hasCurve;
get("no-curve").hidden = hasCurve;

const charts = {
  forest: forestChart,
  "trace-eta": (box) => traceChart(box, figures, 1, "learning rate η", brief, figures.eta),
  "trace-coverage": (box) => traceChart(box, figures, 2, "coverage", (v) => percent(v, 1), figures.level),
  ...(hasCurve ? { curve: curveChart, levels: levelsChart } : {}),
};
const moves = {};
let now = reading(figures.eta);

function show(eta) {
  now = reading(eta);
  for (const move of Object.values(moves)) move(now);
  get("at-eta").textContent = brief(eta);
  get("at-coverage").textContent = percent(now.coverage);
  get("at-width").textContent = width(now).toFixed(2);
  get("home").disabled = eta === figures.eta;
  get("slider").setAttribute("aria-valuetext", `${brief(eta)}, coverage ${percent(now.coverage)}`);
}

// A plot is drawn for the width it has, so that its text is the same size everywhere.
const widths = {};
const observer = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (!contentRect.width || widths[target.id] === Math.round(contentRect.width)) continue;
    widths[target.id] = Math.round(contentRect.width);
    moves[target.id] = charts[target.id](target, figures);
    moves[target.id](now);
  }
  const caption = [get("forest-caption").dataset.said ??= get("forest-caption").textContent];
  if (get("forest").dataset.shared === "false") caption.push("Each row has a scale of its own; a dotted line is zero.");
  if (hasCurve) caption.push("Pale bars stay at the calibrated η.");
  if (figures.parameters[0].own) caption.push("Thin lines are the parameters’ own calibrated intervals.");
  get("forest-caption").textContent = caption.join(" ");
});
for (const id of Object.keys(charts)) observer.observe(get(id));

const slider = get("slider"), steps = Number(slider.max);
const place = scale([etas[0], etas.at(-1)], [0, steps]), homePlace = Math.round(place(figures.eta));
function back() {
  slider.value = homePlace;
  show(figures.eta);
}
slider.addEventListener("input", () => {
  const value = Number(slider.value);
  show(value === homePlace ? figures.eta : etas[0] + (value / steps) * (etas.at(-1) - etas[0]));
});
get("home").addEventListener("click", () => {
  back();
  slider.focus();
});
addEventListener("beforeprint", back);
back();
