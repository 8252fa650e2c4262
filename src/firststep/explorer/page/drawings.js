// The charts of each view: what is drawn where. Every number comes from elsewhere.

import { Chart, element, widened } from "./charts.js";
import { byId, indexOf, isStatic, isTwice, model, position, sameBulk, sameProblem, sameSpectrum, speak } from "./model.js";

export const charts = {};
// What else is drawn with the curves.
export const alsoDrawn = [];
// What stands in a view's legend now: kinds of marks with their words.
export const legends = {};

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const figure = (value, digits = 4) => (value === null || value === undefined ? "–" : Number(value.toPrecision(digits)).toString().replace("-", "−"));

// What an audience's screen leaves to a view's charts, between the head of the page and the step slider; `others` is
// what else the view holds.
const presenting = () => document.body.classList.contains("present");
const left = (others) => innerHeight - byId("top").offsetHeight - byId("step").offsetHeight - others;

// The height of a chart where `rows` of them stand above each other in a presentation, else as given.
export const shared = (rows, others, usually) => (width) => (presenting() ? clamp(left(others) / rows, 170, 900) : usually(width));

// The two charts of the first screen share its height with the step slider beneath them.
export function stageHeight(width) {
  if (presenting()) return clamp(left(148), 240, 900);
  if (innerWidth <= 1000) return clamp(0.66 * width, 210, 330);
  const others = byId("top").offsetHeight + byId("step").offsetHeight + 150;
  return clamp(Math.min(innerHeight - others, 0.78 * width), 210, 560);
}
const usual = shared(1, 148, (width) => clamp(0.66 * width, 210, 400));

export function makeCharts(pick) {
  const against = (lines) => (alpha) => {
    const i = indexOf(alpha);
    return model.curves && { at: model.choices.exponents[i], ...lines(i, model.curves.positions[i]) };
  };
  const errors = against((i, there) => {
    if (model.guess && !model.guess.revealed) return { lines: [`α = ${there.text.alpha}`] };
    const points = shownPoints();
    const at = points ? points.exponents.findIndex((alpha) => Math.abs(alpha - model.choices.exponents[i]) < 1e-6) : -1;
    const drawn = at < 0 ? [] : [`simulated ${figure(points.test.mean[at])} ± ${figure(points.test.stderr[at], 2)}`];
    return { lines: [`α = ${there.text.alpha}, η = ${there.text.eta}`, `test ${there.text.test}${there.text.test_bar}`, `train ${there.text.train}${there.text.train_bar}`, ...drawn], height: there[model.shown.errors] };
  });
  const parts = against((i, { text }) => ({ lines: [`α = ${text.alpha}`, `noise ${text.noise}`, `+ missed ${text.missed}`, `+ spread ${text.spread}`, `= test ${text.test}`] }));
  charts.test = new Chart(byId("chart-test"), { label: "Test error against the step exponent", height: stageHeight, onPick: pick, under: errors });
  charts.train = new Chart(byId("chart-train"), { label: "Train error against the step exponent", height: stageHeight, onPick: pick, under: errors });
  charts.parts = new Chart(byId("chart-parts"), { label: "Noise, missed and spread, which add up to the test error", height: stageHeight, onPick: pick, under: parts });
  const density = (of) => (x) => {
    const found = model.spectra[of];
    if (!found) return null;
    const near = found.outliers.find((spike) => Math.abs(spike.at - x) < 0.02 * (found.x.domain[1] - found.x.domain[0]));
    if (near) return { at: near.at, lines: [near.name, `eigenvalue ${near.text}`, `${near.over_edge} × the edge`, ...near.overlaps.map((entry) => `${entry.name}: ${entry.text}`)] };
    let height = 0;
    for (const piece of found.pieces) if (x >= piece.x[0] && x <= piece.x.at(-1)) height = piece.y[d3.bisectLeft(piece.x, x)] ?? 0;
    // The axis is one of logarithms.
    return { at: x, lines: [`eigenvalue ${figure(10 ** x, 3)}`, `density ${figure(height, 3)} per decade`] };
  };
  charts.spectrum = new Chart(byId("chart-spectrum"), { label: "Spectrum of the features", height: stageHeight, under: density("features") });
  charts.bars = new Chart(byId("chart-bars"), { label: "Teacher's variance in each Hermite degree, and how much is captured", height: usual, under: degree });
  charts.function = new Chart(byId("chart-function"), { label: "Teacher and learned function of β·x", height: usual, under: learnedAt });
  charts.weights = new Chart(byId("chart-weights"), { label: "Spectrum of the weights", height: usual, under: density("weights") });
  charts.alignment = new Chart(byId("chart-alignment"), {
    label: "Alignment of the weights with β against the step exponent",
    height: usual,
    onPick: pick,
    under: against((i, { text }) => ({ lines: [`α = ${text.alpha}`, `overlap² ${text.alignment}`] })),
  });
  charts.inputs = new Chart(byId("chart-inputs"), { label: "Eigenvalues of the inputs' covariance", height: () => 120 });
  addEventListener("resize", () => redrawAll());
}

export function redrawAll() {
  for (const chart of Object.values(charts)) chart.redraw();
}

function degree(x) {
  const { bars } = model.curves.learned;
  const i = clamp(Math.floor(x), 0, bars.names.length - 1);
  const here = position();
  return { at: i + 0.5, lines: [`degree ${bars.names[i]}`, `there ${figure(bars.wanted[i], 3)}`, `captured ${figure(here.captured[i], 3)}`] };
}

function learnedAt(x) {
  const { learned } = model.curves;
  const i = clamp(d3.bisectLeft(learned.at, x), 0, learned.at.length - 1);
  return { at: learned.at[i], lines: [`β·x = ${figure(learned.at[i], 3)}`, `teacher ${figure(learned.teacher[i], 3)}`, `learned ${figure(position().function[i], 3)}`] };
}

const shownPoints = () => (sameProblem(model.simulated?.state, model.state) ? model.simulated.points : null);

export function drawCurves() {
  const here = position();
  if (!here) return;
  const { curves, state } = model;
  document.body.classList.toggle("draft", Boolean(curves.draft));
  const points = shownPoints();
  for (const name of ["test", "train"]) drawErrors(name, here, points);
  drawParts(here);
  drawBars(here);
  drawFunctions(here);
  drawAlignment(here, points);
  for (const call of alsoDrawn) call(curves);
  tell(here);
  const { facts } = curves;
  byId("sizes-text").textContent = facts.sizes;
  byId("notes").replaceChildren(...curves.notes.map((note) => Object.assign(document.createElement("li"), { textContent: note })));
  byId("step_exponent").setAttribute("aria-valuetext", `α = ${here.text.alpha}, η = ${here.text.eta}`);
  speak(`α = ${here.text.alpha}. Test error ${here.text.test}, train error ${here.text.train}.`);
  legend("errors", errorLegend(points));
  legend("learned", [["wanted", "teacher"], ["captured", "captured after the step"], ["random-features", "without a step"]]);
  legend("weights", [["bulk", "predicted bulk"], ["spike", "predicted spike"], ["theory", isTwice() ? "alignment after step 1" : "alignment"], ["linear", "its bound r²"], ...(points ? [["simulation", "simulation ± 1 s.e."]] : [])]);
}

// Simulated points of other settings stay; a tour shows problems of its own.
const keptNow = () => (document.body.classList.contains("touring") ? [] : model.kept);

function drawErrors(name, here, points) {
  const { curves, state, guess } = model;
  const kept = keptNow();
  const { errors } = curves;
  const panel = errors.panels[name];
  const found = points?.[name];
  const hidden = guess && !guess.revealed;
  const others = kept.filter((entry) => entry.points[name] && !sameProblem(entry.state, state));
  const draw = (chart) => {
    const ends = [found, ...others.map((entry) => entry.points[name])].flatMap((each) => (each ? each.mean.flatMap((mean, i) => [mean - each.stderr[i], mean + each.stderr[i]]) : []));
    const guessed = guess && name === "test" ? guess.points.map((point) => point.y) : [];
    chart.frame(errors.x, widened(panel.y, [...ends, ...guessed]));
    errors.x.thresholds.forEach((mark, i) => chart.upright(mark.at, "threshold", mark.text, i % 2));
    if (!hidden) {
      chart.levels(panel.staircase, "staircase");
      if (panel.staircase_whole) chart.levels(panel.staircase_whole, "staircase-whole");
    }
    chart.across(panel.random_features, "random-features");
    chart.across(panel.best_linear, "linear");
    if (!hidden) {
      if (panel.bar) chart.band(curves.exponents, panel.unified.map((y, i) => y - panel.bar[i]), panel.unified.map((y, i) => y + panel.bar[i]), "band");
      chart.path(curves.exponents, panel.unified, "theory");
      for (const other of others) chart.points(other.points.exponents, other.points[name].mean, other.points[name].stderr, "kept");
      if (found) chart.points(points.exponents, found.mean, found.stderr, "simulation");
    }
    if (guess && name === "test") {
      const order = [...guess.points].sort((one, other) => one.x - other.x);
      chart.path(order.map((point) => point.x), order.map((point) => point.y), "guess");
      chart.points(order.map((point) => point.x), order.map((point) => point.y), null, "guessed");
    }
  };
  const compared = name === "test" ? `Random features ${curves.facts.random_features}, best linear predictor ${curves.facts.best_linear}.` : "";
  const moving = (chart) => chart.here(state.step_exponent, hidden ? null : here[name]);
  charts[name].show(draw, `At α = ${here.text.alpha}: ${here.text[name]}. ${compared}`, { key: [panel, points, model.kept, kept.length, guess], moving });
}

function errorLegend(points) {
  const { errors } = model.curves;
  if (model.shown.errors === "parts") return [["part-noise", "noise of the labels"], ["part-missed", "teacher missed"], ["part-spread", "spread of the fit between draws"]];
  const panel = errors.panels[model.shown.errors];
  return [
    ["theory", "theory at this n"],
    ...(panel.bar ? [["band", "its error bar"]] : []),
    ...(panel.staircase.length ? [["staircase", "staircase, n → ∞"]] : []),
    ...(panel.staircase_whole ? [["staircase-whole", "with the whole gradient"]] : []),
    ["random-features", "no step"],
    ...(model.shown.errors === "test" ? [["linear", "best linear predictor"]] : []),
    ...(points ? [["simulation", "simulation ± 1 s.e."]] : []),
    ...(keptNow().some((entry) => !sameProblem(entry.state, model.state)) ? [["kept", "simulated before, other settings"]] : []),
    ...(model.guess ? [["guessed", "your guess"]] : []),
  ];
}

// What adds up to the test error, one upon the other.
function drawParts(here) {
  const { curves, state } = model;
  const { errors, positions } = curves;
  const at = curves.exponents;
  const noise = at.map(() => errors.noise);
  const missed = positions.map((there) => (there.missed === null ? null : errors.noise + there.missed));
  const whole = positions.map((there) => there.test);
  const draw = (chart) => {
    const top = Math.max(...whole.filter((y) => y !== null));
    chart.frame(errors.x, widened({ label: "test error", domain: [top / 2, top], ticks: [] }, [0, 1.05 * top]));
    chart.band(at, at.map(() => 0), noise, "part-noise");
    chart.band(at, noise, missed, "part-missed");
    chart.band(at, missed, whole, "part-spread");
    chart.path(at, whole, "theory");
  };
  charts.parts.show(draw, `At α = ${here.text.alpha}: noise ${here.text.noise}, missed ${here.text.missed}, spread ${here.text.spread}.`, {
    key: [curves.errors, positions],
    moving: (chart) => chart.here(state.step_exponent, here.test),
  });
}

function drawBars(here) {
  const { bars } = model.curves.learned;
  const count = bars.names.length;
  const draw = (chart) => {
    const ticks = bars.names.map((name, i) => ({ at: i + 0.5, text: name }));
    chart.frame({ domain: [0, count], ticks, label: "Hermite degree" }, bars.y);
  };
  const moving = (chart) => {
    const wide = Math.min(52 * Chart.type, ((chart.right - chart.left) / count) * 0.62);
    const floor = chart.py(0);
    bars.wanted.forEach((wanted, i) => {
      const left = chart.px(i + 0.5) - wide / 2;
      const box = (height, kind) => {
        const top = chart.py(height);
        return element("rect", { x: left, y: top, width: wide, height: Math.max(0, floor - top), class: kind, rx: 2 }, chart.plot);
      };
      box(wanted, "wanted");
      box(here.captured[i], "captured");
      const still = chart.py(bars.without_step[i]);
      if (bars.without_step[i] > 0.004 * bars.y.domain[1]) element("line", { x1: left - 4, x2: left + wide + 4, y1: still, y2: still, class: "random-features" }, chart.plot);
    });
  };
  const spoken = here.captured.map((value, i) => `degree ${bars.names[i]}: ${value} of ${bars.wanted[i]}`).join(", ");
  charts.bars.show(draw, spoken, { key: [bars], moving });
}

function drawFunctions(here) {
  const { learned } = model.curves;
  const draw = (chart) => {
    chart.frame(learned.x, learned.y);
    chart.across(0, "zero");
    chart.path(learned.at, learned.teacher, "wanted-line");
    chart.path(learned.at, learned.without_step, "random-features");
  };
  charts.function.show(draw, `After the step the fit has captured ${here.text.captured} of the teacher.`, {
    key: [learned],
    moving: (chart) => chart.path(learned.at, here.function, "theory"),
  });
}

function drawAlignment(here, points) {
  const { curves, state } = model;
  const { alignment } = curves;
  if (alignment.alignment.every((value) => value === null)) {
    charts.alignment.say("No curve of the alignment here: a predicted spike has its overlap with β beside it.");
    return;
  }
  const draw = (chart) => {
    chart.frame(alignment.x, alignment.y);
    if (alignment.critical !== null) chart.upright(alignment.critical, "threshold", "critical step");
    chart.across(alignment.bound, "linear");
    chart.path(curves.exponents, alignment.alignment, "theory");
    if (points?.alignment) chart.points(points.exponents, points.alignment.mean, points.alignment.stderr, "simulation");
  };
  charts.alignment.show(draw, `At α = ${here.text.alpha} the squared overlap is ${here.text.alignment}; its bound is ${curves.facts.bound}.`, {
    key: [alignment, points],
    moving: (chart) => chart.here(state.step_exponent, here.alignment),
  });
}

export function drawSpectrum(of) {
  const found = model.spectra[of];
  if (!found) return;
  const chart = of === "features" ? charts.spectrum : charts.weights;
  // Drawn eigenvalues stay while the step moves, paler once they belong to another step.
  const histogram = model.histograms.find((entry) => entry.of === of && sameBulk(entry.state, found.state));
  const matching = histogram && sameSpectrum(histogram.state, found.state);
  const spoken = found.outliers.length
    ? found.outliers.map((spike) => `${spike.name} at ${spike.text}, ${spike.over_edge} times the edge`).join("; ")
    : "No spike outside the bulk";
  chart.show((paper) => {
    paper.frame(found.x, found.y, { top: 34 });
    if (histogram) paper.bars(histogram.edges, histogram.heights, matching ? "histogram" : "histogram other");
    for (const piece of found.pieces) {
      paper.path(piece.x, piece.y, "bulk", 0);
      paper.path(piece.x, piece.y, "theory");
    }
    if (histogram) paper.points(histogram.top, histogram.top.map(() => found.y.ticks[0].at), null, matching ? "simulation small" : "kept small");
    found.outliers.forEach((_, i) => drawSpike(paper, found, i));
    if (!found.outliers.length) paper.note((paper.left + paper.right) / 2, paper.top - 8, "no spike outside the bulk", { "text-anchor": "middle", class: "name" });
  }, `Bulk from ${found.edge_texts[0]} to ${found.edge_texts[1]}. ${spoken}.`);
  tellSteps(of, found);
  if (of !== "features") return;
  legend("spectrum", [
    ["bulk", found.atom ? `predicted bulk (${found.atom} of the eigenvalues are 0)` : "predicted bulk"],
    ["spike", "predicted spikes, with overlaps²"],
    ...(histogram ? [[matching ? "histogram" : "histogram-other", matching ? "eigenvalues of four draws" : `eigenvalues of four draws at ${whereDrawn(histogram.state)}`]] : []),
  ]);
}

const whereDrawn = (state) => `α = ${state.step_exponent.toFixed(2)}${isTwice(state) ? `, α₂ = ${state.next_step_exponent.toFixed(2)}` : ""}`;

const apart = (found, name) => Math.abs((found.state[name] ?? 0) - (model.state[name] ?? 0)) > 1e-9;

// After which steps a spectrum is, where that is not plain, and why not after both.
function tellSteps(of, found) {
  const name = of === "features" ? "spectrum" : "weights";
  const elsewhere = isStatic && found.steps && (apart(found, "step_exponent") || apart(found, "next_step_exponent"));
  const twice = found.steps && isTwice(found.state);
  const after = found.steps === 2 ? "after both steps" : "after step 1";
  byId(`${name}-at`).textContent = elsewhere ? `${twice ? "after " : ""}${whereDrawn(found.state)}` : twice ? after : "";
  byId(`${name}-said`).textContent = found.said;
  byId(`${name}-said`).hidden = !found.said;
}

// The first spike's name has the room above the frame; the others stand on the side where nothing is in their way.
function drawSpike(paper, found, i) {
  const type = Chart.type;
  const spike = found.outliers[i];
  const at = paper.px(spike.at);
  const top = paper.top + type * (32 * (i % 3) - 15);
  element("line", { x1: at, x2: at, y1: top, y2: paper.bottom, class: "spike" }, paper.over);
  element("circle", { cx: at, cy: top, r: 5.5 * type, class: "spike-dot" }, paper.over);
  const overlaps = spike.overlaps.filter((entry, place) => !place || entry.value >= 0.02).slice(0, 3).map((entry) => `${entry.name} ${entry.text}`).join("  ");
  const wide = type * (10 + 6.4 * Math.max(overlaps.length, 1.2 * spike.text.length));
  const beside = (left, right) => left < paper.left - 4 || right > paper.width || found.outliers.some((other) => other !== spike && paper.px(other.at) > left && paper.px(other.at) < right);
  const covers = (left, right) => found.pieces.some((piece) => piece.x.some((x, j) => paper.px(x) > left && paper.px(x) < right && paper.py(piece.y[j]) < top + 18 * type));
  const spans = { right: [at, at + wide], left: [at - wide, at] };
  const free = (side) => !beside(...spans[side]) && !covers(...spans[side]);
  const usual = at > paper.left + (paper.right - paper.left) * 0.6 ? "left" : "right";
  const side = [usual, usual === "left" ? "right" : "left"].find(free) ?? usual;
  const place = side === "left" ? { x: at - 10 * type, "text-anchor": "end" } : { x: at + 10 * type, "text-anchor": "start" };
  paper.note(place.x, top - 1, spike.text, { "text-anchor": place["text-anchor"], class: "spike-name" });
  paper.note(place.x, top + 13 * type, overlaps, { "text-anchor": place["text-anchor"], class: "name" });
}

export function noSpectrum(of, reason) {
  const chart = of === "features" ? charts.spectrum : charts.weights;
  model.spectra[of] = null;
  chart.say(`No spectrum here: ${reason}`);
  tellSteps(of, { state: model.state, said: "" });
  legend(of === "features" ? "spectrum" : "weights", []);
}

// The sentence that follows the sliders, and the readings.
function tell(here) {
  const hidden = model.guess && !model.guess.revealed;
  const { text } = here;
  // Without a theory there is nothing to tell but that.
  const unknown = text.test === "–" && !hidden;
  byId("told").hidden = unknown;
  byId("told-nothing").hidden = !unknown;
  if (unknown) byId("told-nothing").textContent = isStatic ? "No theory here." : "No theory here: Simulate draws networks, whose errors appear as points.";
  byId("told-alpha").textContent = text.alpha;
  const { facts } = model.curves;
  byId("told-n").textContent = facts.n;
  byId("told-ridge").textContent = facts.ridge;
  byId("told-noise").textContent = figure(Number(model.state.noise_std), 3);
  byId("told-captured").textContent = hidden ? "?" : text.captured;
  byId("told-parts").textContent = !hidden && text.told && text.captured !== "–" ? `: ${text.told}` : "";
  byId("told-error").textContent = hidden ? "?" : text.test;
  byId("told-sum").textContent = hidden || text.missed === "–" ? "" : `: noise ${text.noise} + missed ${text.missed} + spread ${text.spread}`;
  for (const name of ["test", "train", "gain", "captured", "alignment"]) byId(`reading-${name}`).textContent = hidden ? "?" : text[name];
  for (const name of ["test", "train"]) byId(`bar-${name}`).textContent = hidden ? "" : text[`${name}_bar`];
  document.querySelector(".hermite").hidden = Boolean(model.curves.several);
}

// A small picture of each kind of mark, on the page and in what is saved.
const SAMPLES = {
  line: (group, kind) => element("path", { d: "M1 6H25", class: kind }, group),
  levels: (group, kind) => element("line", { x1: 1, x2: 25, y1: 6, y2: 6 }, element("g", { class: kind }, group)),
  straight: (group, kind) => element("line", { x1: 1, x2: 25, y1: 6, y2: 6, class: kind }, group),
  block: (group, kind) => element("rect", { x: 5, y: 0.5, width: 16, height: 11, rx: 2, class: kind }, group),
  dots: (group, kind) => element("circle", { cx: 13, cy: 6, r: 4.2 }, element("g", { class: kind }, group)),
  spike: (group) => element("circle", { cx: 13, cy: 6, r: 4.6, class: "spike-dot" }, group),
  blocks: (group, kind) => element("rect", { x: 5, y: 0.5, width: 16, height: 11 }, element("g", { class: kind }, group)),
};
const KINDS = {
  theory: "line", staircase: "levels", "staircase-whole": "levels", "random-features": "straight", linear: "straight", "wanted-line": "straight",
  "one-step": "straight", "overlap direction-0 vector-0": "line", "overlap direction-0 vector-1": "line", "overlap direction-1 vector-0": "line", "overlap direction-1 vector-1": "line",
  "overlap direction-2 vector-0": "line", "overlap direction-2 vector-1": "line", "overlap direction-3 vector-0": "line", "overlap direction-3 vector-1": "line",
  band: "block", bulk: "block", wanted: "block", captured: "block", "part-noise": "block", "part-missed": "block", "part-spread": "block",
  simulation: "dots", kept: "dots", guessed: "dots", labels: "dots", fits: "dots", spike: "spike", histogram: "blocks", "histogram-other": "blocks", positive: "block", negative: "block",
};

export function sample(kind, parent) {
  const group = element("g", {}, parent);
  SAMPLES[KINDS[kind]](group, kind === "histogram-other" ? "histogram other" : kind);
  return group;
}

export function legend(view, items) {
  const written = JSON.stringify(items);
  if (legends[view]?.written === written) return;
  legends[view] = { items, written };
  const list = document.querySelector(`.legend[data-view="${view}"]`);
  list.replaceChildren(
    ...items.map(([kind, words]) => {
      const item = document.createElement("li");
      const svg = element("svg", { class: "chart sample", width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true" });
      sample(kind, svg);
      item.append(svg, words);
      return item;
    }),
  );
}

export function drawMarks() {
  const { choices, critical } = model;
  const grid = choices.exponents;
  const place = (at) => `${(100 * (at - grid[0])) / (grid.at(-1) - grid[0])}%`;
  const mark = (at, words, kind, title) => {
    const node = Object.assign(document.createElement("span"), { textContent: words, className: kind, title });
    node.style.left = place(at);
    return node;
  };
  byId("marks").replaceChildren(...choices.thresholds.map((entry) => mark(entry.at, entry.text, "limit", "where a spike enters as n → ∞")));
  const shown = document.body.classList.contains("seeking") ? [] : critical?.critical || [];
  byId("critical").replaceChildren(...shown.map((entry) => mark(entry.at, `spike ${entry.spike}`, "leaves", `spike ${entry.spike} leaves the bulk at α = ${entry.text}`)));
}
