// The page: reads the controls, asks the server, draws what comes back. No mathematics here.

import { Chart, element, pngOf, standalone, svgText, widened } from "./charts.js";

const byId = (id) => document.getElementById(id);
const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;
const token = meta("firststep-token");
const isStatic = meta("firststep-mode") === "static";
const client = crypto.randomUUID ? crypto.randomUUID() : String(performance.timeOrigin).replace(".", "-");
const NUMBERS = ["noise_std", "n_samples", "dim_per_sample", "width_per_sample", "step_samples_per_sample", "ridge"];
const WORDS = ["rows", "readout", "initial_output"];
const SETTLE = 220;

let choices = null;
let state = null;
let curves = null; // the last answer for the problem shown
let spectra = { features: null, weights: null };
let simulated = null;
let histograms = [];
let job = null;
let settle = null;
let from = null; // where a static page stands in its grid
const charts = {};
// Times from a control's event to the new picture, for benchmarks.
const timings = { curves: [], spectrum: [], local: [] };
window.firststepTimings = timings;


class Asker {
  constructor() {
    this.running = new Map();
  }

  async get(slot, address, headers = {}) {
    this.running.get(slot)?.abort();
    const abort = new AbortController();
    this.running.set(slot, abort);
    try {
      const answer = await fetch(address, { signal: abort.signal, headers: { "x-firststep-client": client, ...headers } });
      if (answer.status === 409) return null;
      const content = await answer.json();
      if (!answer.ok) throw new Error(content.detail || `the server answered ${answer.status}`);
      return this.running.get(slot) === abort ? content : null;
    } catch (error) {
      if (error.name === "AbortError") return null;
      throw error;
    } finally {
      if (this.running.get(slot) === abort) this.running.delete(slot);
    }
  }

  drop(...slots) {
    for (const slot of slots) this.running.get(slot)?.abort();
  }
}
const asker = new Asker();

function query(values = state) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && String(value) !== String(choices.defaults[name])) parameters.set(name, value);
  }
  return parameters.toString();
}

const live = {
  choices: () => asker.get("choices", "api/choices"),
  curves: (quality) => asker.get("curves", `api/curves?${query()}`, { "x-firststep-quality": quality }),
  exact: () => asker.get("exact", `api/curves?${query()}`, { "x-firststep-quality": "exact" }),
  spectrum: (of, quality) => asker.get(`${of}-${quality}`, `api/spectrum/${of}?${query()}`, { "x-firststep-quality": quality }),
  simulated: () => asker.get("simulated", `api/simulated?${query()}`),
};

// Files written beforehand: a preset, a place on the ladders of n and ridge, and all steps.
const files = {
  choices: () => asker.get("choices", "data/choices.json"),
  curves: async () => {
    const found = await asker.get("curves", `data/curves-${from.preset}-${from.n}-${from.ridge}.json`);
    return found && { ...found, state: { ...found.state, step_exponent: state.step_exponent }, here: null };
  },
  spectrum: async (of) => {
    const found = await asker.get(of, `data/spectra-${of}-${from.preset}-${from.n}.json`);
    return found && found.spectra[found.nearest[indexOf(state.step_exponent)]];
  },
  exact: () => files.curves(),
  simulated: async () => ({ points: null }),
};
const source = isStatic ? files : live;


const same = (a, b, leftOut) => a && b && Object.keys(choices.defaults).every((name) => leftOut.includes(name) || String(a[name]) === String(b[name]));
const sameProblem = (a, b) => same(a, b, ["step_exponent"]);
const sameSpectrum = (a, b) => same(a, b, choices.not_in_spectra);

function indexOf(alpha) {
  let best = 0;
  choices.exponents.forEach((value, i) => {
    if (Math.abs(value - alpha) < Math.abs(choices.exponents[best] - alpha)) best = i;
  });
  return best;
}

function onGrid(alpha) {
  return Math.abs(choices.exponents[indexOf(alpha)] - alpha) < 1e-9;
}

function position() {
  if (!curves) return null;
  if (curves.here && !onGrid(state.step_exponent)) return curves.here;
  return curves.positions[indexOf(state.step_exponent)];
}

function change(values, started = performance.now()) {
  state = { ...state, ...values };
  byId("message").hidden = true;
  rememberAddress();
  showControls();
  refresh(started);
}

let addressTimer = null;
function rememberAddress() {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => {
    const parameters = query();
    const shown = isStatic ? new URLSearchParams({ ...from, step_exponent: state.step_exponent }).toString() : parameters;
    history.replaceState(null, "", shown ? `?${shown}` : location.pathname);
  }, 120);
}

let waiting = 0;
function refresh(started) {
  clearTimeout(settle);
  document.body.dataset.settled = "false";
  const turn = ++waiting;
  const local = sameProblem(curves?.state, state) && onGrid(state.step_exponent) && !state.step_size;
  if (local) {
    curves.state = { ...state };
    asker.drop("exact");
    drawCurves();
    clock("local", started);
    finish(turn);
  } else {
    document.body.classList.add("busy");
    if (simulated && !sameProblem(simulated.state, state)) {
      simulated = null;
      if (!(job && job.status === "running")) byId("simulation-text").textContent = "";
    }
    followCurves(started);
  }
  followSpectra(started);
}

// One request at a time and then the newest: what comes back is drawn even if the slider has moved on meanwhile, so
// that the picture follows a moving hand instead of waiting for it to rest.
let curvesBusy = false;
let curvesNext = null;
async function followCurves(started) {
  if (curvesBusy) {
    curvesNext = started;
    return;
  }
  curvesBusy = true;
  asker.drop("exact");
  const found = await attempt(() => source.curves("draft"));
  curvesBusy = false;
  const next = curvesNext;
  curvesNext = null;
  const moved = next !== null && !(sameProblem(found?.state, state) && onGrid(state.step_exponent) && !state.step_size);
  // The next question is on its way while this answer is drawn.
  if (moved) followCurves(next);
  if (!found) return;
  accept(found, !moved);
  clock("curves", started);
  if (!moved) finish(waiting);
}

function accept(found, newest = true) {
  const asked = state;
  curves = found;
  document.body.classList.toggle("busy", !newest);
  if (newest && (asked.step_size || sameProblem(found.state, asked))) {
    const moved = !asked.step_size && onGrid(asked.step_exponent);
    state = { ...found.state, step_exponent: moved ? asked.step_exponent : found.state.step_exponent };
    curves.state = { ...state };
    showControls();
  }
  drawCurves();
}

function finish(turn) {
  if (curves.draft) settle = setTimeout(() => exact(turn), SETTLE);
  else settled(turn);
}

async function exact(turn) {
  const found = await attempt(() => source.exact());
  if (turn !== waiting || !found) return;
  accept(found);
  settled(turn);
}

// The numbers shown are final.
function settled(turn) {
  document.body.dataset.settled = "true";
  settle = setTimeout(() => lookUpSimulated(turn), SETTLE);
}

async function lookUpSimulated(turn) {
  if (sameProblem(simulated?.state, state) || (job && job.status === "running")) return;
  const asked = { ...state };
  const found = await source.simulated().catch(() => null);
  if (turn !== waiting || !found?.points) return;
  simulated = { state: asked, points: found.points };
  byId("simulation-text").textContent = `${found.points.replicas} replicas of this problem are in the store.`;
  drawCurves();
}

const HOLDERS = { features: "chart-spectrum", weights: "chart-weights" };
const following = { features: { busy: false, next: null, rest: null }, weights: { busy: false, next: null, rest: null } };

function followSpectra(started) {
  for (const of of Object.keys(following)) followSpectrum(of, started);
}

async function followSpectrum(of, started) {
  const follow = following[of];
  if (!follow.busy && !state.step_size && sameSpectrum(spectra[of]?.state, state)) return;
  if (follow.busy) {
    follow.next = started;
    return;
  }
  follow.busy = true;
  clearTimeout(follow.rest);
  asker.drop(`${of}-exact`);
  const holder = byId(HOLDERS[of]);
  holder.dataset.exact = "false";
  const slow = setTimeout(() => holder.classList.add("waiting"), 500);
  try {
    const found = await source.spectrum(of, "draft");
    if (found) {
      acceptSpectrum(of, found);
      if (of === "features") clock("spectrum", started);
    }
  } catch (error) {
    noSpectrum(of, error.message);
  } finally {
    clearTimeout(slow);
    holder.classList.remove("waiting");
    follow.busy = false;
  }
  const next = follow.next;
  follow.next = null;
  if (next !== null) followSpectrum(of, next);
  if (!follow.busy && spectra[of]?.draft && !isStatic) follow.rest = setTimeout(() => exactSpectrum(of), 2 * SETTLE);
}

function acceptSpectrum(of, found) {
  spectra[of] = found;
  drawSpectrum(of);
  const holder = byId(HOLDERS[of]);
  holder.dataset.exponent = found.state.step_exponent;
  holder.dataset.exact = String(!found.draft);
}

// At rest the density is refined until it settles; where that takes too long the draft stays.
async function exactSpectrum(of) {
  const found = await source.spectrum(of, "exact").catch(() => null);
  if (found && sameSpectrum(found.state, spectra[of]?.state)) acceptSpectrum(of, found);
}

async function attempt(ask) {
  try {
    return await ask();
  } catch (error) {
    document.body.classList.remove("busy");
    const banner = byId("message");
    banner.textContent = error.message === "Failed to fetch" ? "The server does not answer. Is firststep explore still running?" : error.message;
    banner.hidden = false;
    return null;
  }
}

function clock(name, started) {
  requestAnimationFrame(() => timings[name].push(performance.now() - started));
}


function makeCharts() {
  const pick = (alpha) => change({ step_exponent: choices.exponents[indexOf(alpha)], step_size: undefined });
  charts.test = new Chart(byId("chart-test"), { label: "Test error against the step exponent", onPick: pick });
  charts.train = new Chart(byId("chart-train"), { label: "Train error against the step exponent", onPick: pick });
  charts.spectrum = new Chart(byId("chart-spectrum"), { label: "Spectrum of the features", ratio: 0.42, least: 230, most: 330 });
  charts.bars = new Chart(byId("chart-bars"), { label: "Teacher's variance in each Hermite degree, and how much is captured" });
  charts.function = new Chart(byId("chart-function"), { label: "Teacher and learned function of β·x" });
  charts.weights = new Chart(byId("chart-weights"), { label: "Spectrum of the weights" });
  charts.alignment = new Chart(byId("chart-alignment"), { label: "Alignment of the weights with β against the step exponent", onPick: pick });
}

function drawCurves() {
  const here = position();
  if (!here) return;
  const { errors, learned, alignment } = curves;
  const points = sameProblem(simulated?.state, state) ? simulated.points : null;
  document.body.classList.toggle("draft", Boolean(curves.draft));
  for (const name of ["test", "train"]) {
    const panel = errors.panels[name];
    const found = points?.[name];
    const draw = (chart) => {
      const ends = found ? found.mean.flatMap((mean, i) => [mean - found.stderr[i], mean + found.stderr[i]]) : [];
      chart.frame(errors.x, widened(panel.y, ends));
      errors.x.thresholds.forEach((mark, i) => chart.upright(mark.at, "threshold", mark.text, i % 2));
      chart.levels(panel.staircase, "staircase");
      if (panel.staircase_whole) chart.levels(panel.staircase_whole, "staircase-whole");
      chart.across(panel.random_features, "random-features");
      chart.across(panel.best_linear, "linear");
      chart.path(curves.exponents, panel.unified, "theory");
      if (found) chart.points(points.exponents, found.mean, found.stderr, "simulation");
    };
    const compared = name === "test" ? `Random features ${curves.facts.random_features}, best linear predictor ${curves.facts.best_linear}.` : "";
    const moving = (chart) => chart.here(state.step_exponent, here[name]);
    charts[name].show(draw, `At α = ${here.text.alpha}: ${here.text[name]}. ${compared}`, { key: [panel, points], moving });
  }
  byId("legend-whole").hidden = !errors.panels.test.staircase_whole;
  drawBars(learned.bars, here);
  const drawFunctions = (chart) => {
    chart.frame(learned.x, learned.y);
    chart.across(0, "zero");
    chart.path(learned.at, learned.teacher, "wanted-line");
    chart.path(learned.at, learned.without_step, "random-features");
  };
  charts.function.show(drawFunctions, `After the step the fit has captured ${here.text.captured} of the teacher.`, {
    key: [learned],
    moving: (chart) => chart.path(learned.at, here.function, "theory"),
  });
  const drawAlignment = (chart) => {
    chart.frame(alignment.x, alignment.y);
    if (alignment.critical !== null) chart.upright(alignment.critical, "threshold", "critical");
    chart.across(alignment.bound, "linear");
    chart.path(curves.exponents, alignment.alignment, "theory");
    if (points?.alignment) chart.points(points.exponents, points.alignment.mean, points.alignment.stderr, "simulation");
  };
  charts.alignment.show(drawAlignment, `At α = ${here.text.alpha} the squared overlap is ${here.text.alignment}; its bound is ${curves.facts.bound}.`, {
    key: [alignment, points],
    moving: (chart) => chart.here(state.step_exponent, here.alignment),
  });
  for (const name of ["test", "train", "gain", "captured", "alignment"]) byId(`reading-${name}`).textContent = here.text[name];
  for (const node of document.querySelectorAll(".if-simulated")) node.hidden = !points;
  const facts = curves.facts;
  byId("sizes-text").textContent = `n = ${facts.n}, d = ${facts.d}, N = ${facts.N}, n₀ = ${facts.n0}`;
  byId("notes").replaceChildren(...curves.notes.map((note) => Object.assign(document.createElement("li"), { textContent: note })));
  byId("step_exponent").setAttribute("aria-valuetext", `α = ${here.text.alpha}, η = ${here.text.eta}`);
  speak(`α = ${here.text.alpha}. Test error ${here.text.test}, train error ${here.text.train}.`);
}

let speech = null;
function speak(sentence) {
  clearTimeout(speech);
  speech = setTimeout(() => (byId("spoken").textContent = sentence), 900);
}

function drawBars(bars, here) {
  const count = bars.names.length;
  const draw = (chart) => {
    const ticks = bars.names.map((name, i) => ({ at: i + 0.5, text: name }));
    chart.frame({ domain: [0, count], ticks, label: "Hermite degree" }, bars.y);
  };
  const moving = (chart) => {
    const wide = Math.min(52, ((chart.right - chart.left) / count) * 0.62);
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

function drawSpectrum(of) {
  const found = spectra[of];
  const chart = of === "features" ? charts.spectrum : charts.weights;
  const histogram = histograms.find((entry) => entry.of === of && sameSpectrum(entry.state, found.state));
  const spoken = found.outliers.length
    ? found.outliers.map((spike) => `${spike.name} at ${spike.text}, ${spike.over_edge} times the edge`).join("; ")
    : "No spike outside the bulk";
  chart.show((paper) => {
    paper.frame(found.x, found.y, { top: of === "features" ? 34 : 30 });
    if (histogram) paper.bars(histogram.edges, histogram.heights, "histogram");
    for (const piece of found.pieces) {
      paper.path(piece.x, piece.y, "bulk", 0);
      paper.path(piece.x, piece.y, "theory");
    }
    if (histogram) paper.points(histogram.top, histogram.top.map(() => found.y.ticks[0].at), null, "simulation small");
    found.outliers.forEach((spike, i) => {
      const at = paper.px(spike.at);
      const top = paper.top + 16 + 30 * (i % 3);
      element("line", { x1: at, x2: at, y1: top, y2: paper.bottom, class: "spike" }, paper.plot);
      element("circle", { cx: at, cy: top, r: 5.5, class: "spike-dot" }, paper.over);
      const flip = at > (paper.left + paper.right) * 0.62;
      const side = flip ? { x: at - 10, "text-anchor": "end" } : { x: at + 10, "text-anchor": "start" };
      paper.note(side.x, top - 1, spike.text, { "text-anchor": side["text-anchor"], class: "spike-name" });
      const overlaps = spike.overlaps.slice(0, 3).map((entry) => `${entry.name} ${entry.text}`).join("  ");
      paper.note(side.x, top + 13, overlaps, { "text-anchor": side["text-anchor"], class: "name" });
    });
    if (!found.outliers.length) paper.note((paper.left + paper.right) / 2, paper.top + 4, "no spike outside the bulk", { "text-anchor": "middle", class: "name" });
  }, `Bulk from ${found.edge_texts[0]} to ${found.edge_texts[1]}. ${spoken}.`);
  if (of === "features") {
    byId("atom-text").textContent = found.atom ? `${found.atom} of the eigenvalues are 0` : "";
    for (const node of document.querySelectorAll(".if-histogram")) node.hidden = !histogram;
  }
}

function noSpectrum(of, reason) {
  const chart = of === "features" ? charts.spectrum : charts.weights;
  spectra[of] = null;
  chart.show((paper) => {
    paper.left = 10;
    paper.over = element("g", {}, paper.svg);
    const words = `No spectrum here: ${reason}`.match(/.{1,60}(\s|$)/g) || [];
    words.slice(0, 4).forEach((line, i) => paper.note(paper.width / 2, 60 + 18 * i, line.trim(), { "text-anchor": "middle", class: "name" }));
  }, `No spectrum: ${reason}`);
}


const nameOf = { activation: "activations", teacher: "teachers" };

function fill(select, values, texts = values) {
  select.replaceChildren(...values.map((value, i) => new Option(texts[i], value)));
}

function makeControls() {
  for (const [name, list] of Object.entries(nameOf)) {
    fill(byId(`${name}-name`), [...choices[list], ""], [...choices[list], "expression …"]);
    byId(`${name}-name`).addEventListener("change", (event) => {
      const value = event.target.value;
      event.target.closest("fieldset").querySelector(".expression").hidden = value !== "";
      if (value) change({ [name]: value });
      else byId(name).focus();
    });
    byId(name).addEventListener("change", (event) => change({ [name]: event.target.value.trim() }));
  }
  fill(byId("rows"), choices.rows);
  fill(byId("readout"), choices.readouts);
  fill(byId("initial_output"), choices.initial_outputs, choices.initial_outputs.map((word) => word.replace("_", " ")));
  for (const name of WORDS) byId(name).addEventListener("change", (event) => change({ [name]: event.target.value }));
  for (const name of NUMBERS) {
    const ladder = choices.ladders[name];
    const slider = byId(`${name}-slider`);
    Object.assign(slider, { min: 0, max: ladder.length - 1, step: 1 });
    slider.addEventListener("input", () => change({ [name]: ladder[slider.value] }));
    byId(name).addEventListener("change", (event) => change({ [name]: event.target.value.trim() }));
  }
  for (const slider of document.querySelectorAll(".hermite input")) slider.addEventListener("input", composeTeacher);
  const step = byId("step_exponent");
  const grid = choices.exponents;
  Object.assign(step, { min: 0, max: grid.length - 1, step: 1 });
  step.addEventListener("input", () => change({ step_exponent: grid[step.value], step_size: undefined }));
  byId("alpha-number").addEventListener("change", (event) => change({ step_exponent: event.target.value.trim().replace("−", "-"), step_size: undefined }));
  byId("eta-number").addEventListener("change", (event) => change({ step_size: event.target.value.trim() }));
  for (const mark of choices.thresholds) {
    const node = document.createElement("span");
    node.textContent = mark.text;
    node.style.left = `${(100 * (mark.at - grid[0])) / (grid[grid.length - 1] - grid[0])}%`;
    byId("marks").append(node);
  }
  choices.presets.forEach((preset, i) => byId("preset").append(new Option(preset.name, i)));
  byId("preset").addEventListener("change", (event) => {
    const preset = choices.presets[event.target.value];
    if (!preset) return;
    if (isStatic) moveTo({ preset: Number(event.target.value), ...choices.start });
    change({ ...preset.state, step_size: undefined });
  });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  byId("simulate").addEventListener("click", startSimulation);
  byId("cancel").addEventListener("click", cancelSimulation);
  if (isStatic) restrictToGrid();
}

const ROOTS = { 1: "h1", 2: "h2/sqrt(2)", 3: "h3/sqrt(6)", 4: "h4/sqrt(24)" };
function composeTeacher() {
  const terms = [...document.querySelectorAll(".hermite input")]
    .filter((slider) => Number(slider.value) !== 0)
    .map((slider) => `${slider.value}*${ROOTS[slider.dataset.degree]}`);
  change({ teacher: (terms.join(" + ") || "0*h1").replaceAll("+ -", "- ") });
}

function showControls() {
  for (const [name, list] of Object.entries(nameOf)) {
    const known = choices[list].includes(state[name]);
    byId(`${name}-name`).value = known ? state[name] : "";
    byId(name).value = state[name];
    byId(`${name}-name`).closest("fieldset").querySelector(".expression").hidden = known;
  }
  for (const name of WORDS) byId(name).value = state[name];
  for (const name of NUMBERS) {
    const ladder = choices.ladders[name];
    const slider = byId(`${name}-slider`);
    let best = 0;
    ladder.forEach((value, i) => {
      if (Math.abs(value - state[name]) < Math.abs(ladder[best] - state[name])) best = i;
    });
    if (Number(slider.value) !== best) slider.value = best;
    const shown = String(Number(state[name]) >= 1e6 ? Number(state[name]).toExponential().replace("e+", "e") : state[name]);
    if (document.activeElement !== byId(name)) byId(name).value = shown;
    slider.setAttribute("aria-valuetext", shown);
  }
  if (curves && sameProblem(curves.state, state)) {
    document.querySelectorAll(".hermite input").forEach((slider, i) => {
      if (document.activeElement !== slider) slider.value = curves.teacher_weights[i];
      slider.nextElementSibling.textContent = document.activeElement === slider ? slider.value : curves.teacher_weights[i];
    });
  }
  const index = indexOf(state.step_exponent);
  if (Number(byId("step_exponent").value) !== index) byId("step_exponent").value = index;
  const here = position();
  if (here && sameProblem(curves.state, state)) {
    if (document.activeElement !== byId("alpha-number")) byId("alpha-number").value = here.text.alpha;
    if (document.activeElement !== byId("eta-number")) byId("eta-number").value = here.text.eta.replace("·10", "e");
  }
  const preset = choices.presets.findIndex((entry) => sameProblem(entry.state, state));
  byId("preset").value = isStatic ? from.preset : preset < 0 ? "" : preset;
}

// A static page knows some values of n and of the ridge only, others for each preset.
function moveTo(place) {
  from = place;
  choices.ladders = { ...choices.ladders, ...choices.grids[from.preset] };
  for (const name of ["n_samples", "ridge"]) byId(`${name}-slider`).max = choices.ladders[name].length - 1;
}

function restrictToGrid() {
  document.body.classList.add("static");
  moveTo(from);
  const fixed = ["activation-name", "teacher-name", "activation", "teacher", ...WORDS, ...NUMBERS, "alpha-number", "eta-number"];
  for (const name of fixed) byId(name).disabled = true;
  for (const slider of document.querySelectorAll(".hermite input")) slider.disabled = true;
  byId("simulation").hidden = true;
  for (const name of NUMBERS) {
    const place = { n_samples: "n", ridge: "ridge" }[name];
    const slider = byId(`${name}-slider`);
    if (!place) slider.disabled = true;
    else slider.addEventListener("input", () => (from[place] = Number(slider.value)), { capture: true });
  }
}

async function startSimulation() {
  const text = byId("simulation-text");
  byId("simulate").disabled = true;
  try {
    const answer = await fetch("api/simulations", {
      method: "POST",
      headers: { "content-type": "application/json", "x-firststep-token": token },
      body: JSON.stringify({ state: { ...state, step_size: null }, replicas: Number(byId("replicas").value) }),
    });
    const content = await answer.json();
    if (answer.ok) {
      job = content;
      follow();
      return;
    }
    text.textContent = content.detail;
  } catch {
    text.textContent = "The server does not answer.";
  }
  byId("simulate").disabled = false;
}

async function follow() {
  const text = byId("simulation-text");
  const bar = byId("progress");
  byId("cancel").hidden = false;
  byId("simulate").disabled = true;
  bar.hidden = false;
  bar.max = job.replicas;
  bar.value = 0;
  text.textContent = `drawing ${job.replicas} networks …`;
  while (job && ["running", "cancelling"].includes(job.status)) {
    await new Promise((resolve) => setTimeout(resolve, 350));
    try {
      const answer = await fetch(`api/simulations/${job.id}`);
      job = await answer.json();
    } catch {
      job = { ...job, status: "failed", reason: "the server does not answer" };
    }
    bar.value = job.done;
    if (job.status === "running") text.textContent = `${job.done} of ${job.replicas} replicas, ${Math.round(job.seconds)} s`;
    if (job.points) simulated = { state: job.state, points: job.points };
    if (job.spectra?.length) {
      histograms = job.spectra.map((entry) => ({ ...entry, state: job.state }));
      for (const of of ["features", "weights"]) if (spectra[of]) drawSpectrum(of);
    }
    drawCurves();
  }
  const endings = {
    finished: `${job.done} replicas done; they are kept in the store.`,
    cancelled: `Cancelled; ${job.done} replicas are kept in the store.`,
    failed: `The simulation failed: ${job.reason}`,
  };
  text.textContent = endings[job.status] || job.status;
  byId("cancel").hidden = true;
  byId("simulate").disabled = false;
  bar.hidden = true;
}

async function cancelSimulation() {
  if (!job) return;
  byId("simulation-text").textContent = "cancelling …";
  await fetch(`api/simulations/${job.id}`, { method: "DELETE", headers: { "x-firststep-token": token } });
}


const VIEWS = {
  errors: { title: "Train and test error", charts: ["test", "train"] },
  spectrum: { title: "The features' spectrum", charts: ["spectrum"] },
  learned: { title: "What was learned", charts: ["bars", "function"] },
  weights: { title: "The weights", charts: ["weights", "alignment"] },
};

function makeExports() {
  for (const place of document.querySelectorAll(".export")) {
    for (const kind of ["SVG", "PNG", "CSV"]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = kind;
      button.setAttribute("aria-label", `Save ${VIEWS[place.dataset.view].title} as ${kind}`);
      button.addEventListener("click", () => save(place.dataset.view, kind));
      place.append(button);
    }
  }
}

async function save(view, kind) {
  const { title, charts: names } = VIEWS[view];
  const label = `${title}: ${state.activation}, teacher ${state.teacher}, α = ${position()?.text.alpha}`;
  if (kind === "CSV") {
    download(new Blob([csv(view)], { type: "text/csv" }), `firststep-${view}.csv`);
    return;
  }
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();
  const picture = standalone(names.map((name) => charts[name].svg), label, paper);
  const blob = kind === "SVG" ? new Blob([svgText(picture)], { type: "image/svg+xml" }) : await pngOf(picture);
  download(blob, `firststep-${view}.${kind.toLowerCase()}`);
}

function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csv(view) {
  const here = position();
  const rows = [];
  const add = (...row) => rows.push(row.map((cell) => (cell === null || cell === undefined ? "" : /[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : cell)).join(","));
  if (view === "errors") {
    const { test, train } = curves.errors.panels;
    add("step_exponent", "source", "test_error", "test_error_stderr", "train_error", "train_error_stderr");
    curves.exponents.forEach((alpha, i) => add(alpha, "unified", test.unified[i], "", train.unified[i], ""));
    test.staircase.forEach((level, i) => add(level.from, `staircase from here to ${level.to}`, level.y, "", train.staircase[i].y, ""));
    add("", "random_features", test.random_features, "", train.random_features, "");
    add("", "best_linear_predictor", test.best_linear, "", "", "");
    const points = sameProblem(simulated?.state, state) ? simulated.points : null;
    points?.exponents.forEach((alpha, i) => add(alpha, "simulation", points.test.mean[i], points.test.stderr[i], points.train.mean[i], points.train.stderr[i]));
  } else if (view === "learned") {
    add("hermite_degree", "teacher_variance", "captured", "captured_without_step");
    const { bars } = curves.learned;
    bars.names.forEach((name, i) => add(name, bars.wanted[i], here.captured[i], bars.without_step[i]));
    add();
    add("beta_x", "teacher", "learned", "without_step");
    curves.learned.at.forEach((x, i) => add(x, curves.learned.teacher[i], here.function[i], curves.learned.without_step[i]));
  } else {
    const found = spectra[view === "spectrum" ? "features" : "weights"];
    add("eigenvalue", "density");
    found?.raw.x.forEach((x, i) => add(x, found.raw.density[i]));
    add();
    add("outlier", "over_edge", "overlaps");
    found?.outliers.forEach((spike) => add(spike.text, spike.over_edge, spike.overlaps.map((entry) => `${entry.name} ${entry.value}`).join(" ")));
    if (view === "weights") {
      add();
      add("step_exponent", "alignment");
      curves.exponents.forEach((alpha, i) => add(alpha, curves.alignment.alignment[i]));
    }
  }
  return `${rows.join("\n")}\n`;
}

let toastTimer = null;
function toast(sentence) {
  const node = byId("toast");
  node.textContent = sentence;
  node.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (node.hidden = true), 2200);
}

async function copyText(content, done) {
  try {
    await navigator.clipboard.writeText(content);
    toast(done);
  } catch {
    toast("This browser does not allow copying: select the text instead.");
  }
}

function makeCopying() {
  const dialog = byId("copy-dialog");
  const tabs = [...dialog.querySelectorAll("[role=tab]")];
  const choose = (tab) => {
    for (const other of tabs) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
    }
    const texts = curves?.copy;
    byId("copy-text").textContent = texts ? texts[tab.dataset.copy] : "";
    byId("copy-text").setAttribute("aria-labelledby", tab.id);
  };
  byId("copy-open").addEventListener("click", async () => {
    if (!isStatic && curves) {
      // The position may have moved since the curves came.
      const found = await attempt(() => live.curves("draft"));
      if (found) curves.copy = found.copy;
    }
    choose(tabs.find((tab) => tab.getAttribute("aria-selected") === "true"));
    dialog.showModal();
  });
  for (const tab of tabs) tab.addEventListener("click", () => choose(tab));
  dialog.querySelector(".tabs").addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    const next = tabs[(tabs.indexOf(document.activeElement) + move + tabs.length) % tabs.length];
    choose(next);
    next.focus();
  });
  byId("copy-now").addEventListener("click", () => copyText(byId("copy-text").textContent, "Copied."));
  byId("copy-close").addEventListener("click", () => dialog.close());
  byId("share").addEventListener("click", () => {
    const shown = query();
    copyText(`${location.origin}${location.pathname}${shown ? `?${shown}` : ""}`, "Link copied: it restores this view.");
  });
}


function makeTheme() {
  const stored = localStorage.getItem("firststep-theme");
  if (stored) document.documentElement.dataset.theme = stored;
  byId("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("firststep-theme", dark ? "light" : "dark");
  });
}

function makeSymbols() {
  const glossary = {};
  for (const term of document.querySelectorAll("#glossary dt")) glossary[term.textContent] = term.nextElementSibling.textContent;
  const tip = byId("tip");
  const open = (node) => {
    tip.textContent = glossary[node.dataset.symbol];
    tip.hidden = false;
    const box = node.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${left}px`;
    const above = box.top - tip.offsetHeight - 8;
    tip.style.top = `${above > 4 ? above : box.bottom + 8}px`;
  };
  const close = () => (tip.hidden = true);
  for (const node of document.querySelectorAll(".sym")) {
    node.tabIndex = 0;
    node.setAttribute("role", "note");
    node.setAttribute("aria-label", `${node.textContent}: ${glossary[node.dataset.symbol]}`);
    node.addEventListener("pointerenter", () => open(node));
    node.addEventListener("focus", () => open(node));
    node.addEventListener("click", (event) => { event.preventDefault(); open(node); });
    for (const end of ["pointerleave", "blur"]) node.addEventListener(end, close);
  }
  document.addEventListener("keydown", (event) => event.key === "Escape" && close());
  document.addEventListener("scroll", close, { passive: true });
}

const TOUR = [
  { view: "view-errors", state: { step_exponent: -0.1 }, title: "No step yet", body: "With a tiny step the network is a random-feature model. Its test error (pink) lies above the best linear predictor (dotted), whatever the activation." },
  { view: "view-spectrum", state: { step_exponent: 0.2 }, title: "A spike leaves the bulk", body: "At α = 0.2 one eigenvalue has left the bulk. Its singular vector is z, the coordinate along the direction that the gradient found." },
  { view: "view-learned", state: { step_exponent: 0.42 }, title: "A second degree is learned", body: "Beyond α = 1/4 a second spike grows, carrying z². The fit now captures a part of the teacher's degree 2, which no linear method can." },
  { view: "view-weights", state: { step_exponent: 0.3 }, title: "The weights turn to β", body: "In the weights there is one spike only. Once it is out of the bulk, its singular vector aligns with β, up to a bound set by the noise and by d/n₀." },
  { view: "step", state: { step_exponent: 0.3, n_samples: 1e9 }, title: "Towards the staircase", body: "At n = 10⁹ the smooth curve begins to show the steps at 1/4 and 1/3. Lower n again and press Simulate to put real networks beside the theory." },
];
let tourPlace = 0;

function makeTour() {
  const card = byId("tour");
  const show = (place) => {
    tourPlace = place;
    const step = TOUR[place];
    for (const node of document.querySelectorAll(".lit")) node.classList.remove("lit");
    byId(step.view).classList.add("lit");
    byId(step.view).scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    byId("tour-count").textContent = `${place + 1} of ${TOUR.length}`;
    byId("tour-title").textContent = step.title;
    byId("tour-body").textContent = step.body;
    byId("tour-back").disabled = place === 0;
    byId("tour-next").textContent = place === TOUR.length - 1 ? "Done" : "Next";
    change(isStatic ? { step_exponent: step.state.step_exponent } : { ...choices.defaults, ...step.state, step_size: undefined });
  };
  const end = () => {
    card.hidden = true;
    for (const node of document.querySelectorAll(".lit")) node.classList.remove("lit");
    byId("tour-start").focus();
  };
  byId("tour-start").addEventListener("click", () => {
    card.hidden = false;
    show(0);
    byId("tour-next").focus();
  });
  byId("tour-next").addEventListener("click", () => (tourPlace === TOUR.length - 1 ? end() : show(tourPlace + 1)));
  byId("tour-back").addEventListener("click", () => show(Math.max(0, tourPlace - 1)));
  byId("tour-end").addEventListener("click", end);
  card.addEventListener("keydown", (event) => event.key === "Escape" && end());
}


async function start() {
  makeTheme();
  choices = await attempt(() => source.choices());
  if (!choices) return;
  const given = Object.fromEntries(new URLSearchParams(location.search));
  if (isStatic) {
    const place = (name, length, other) => (given[name] in [...Array(length).keys()] ? Number(given[name]) : other);
    const preset = place("preset", choices.presets.length, 0);
    const grid = choices.grids[preset];
    from = { preset, n: place("n", grid.n_samples.length, choices.start.n), ridge: place("ridge", grid.ridge.length, choices.start.ridge) };
    state = { ...choices.presets[preset].state, n_samples: grid.n_samples[from.n], ridge: grid.ridge[from.ridge] };
    const alpha = Number(given.step_exponent);
    if (given.step_exponent && choices.exponents.includes(alpha)) state.step_exponent = alpha;
  } else {
    state = { ...choices.defaults };
    for (const [name, value] of Object.entries(given)) {
      if (name in choices.defaults) state[name] = typeof choices.defaults[name] === "number" && value !== "" && !Number.isNaN(Number(value)) ? Number(value) : value;
    }
  }
  if (matchMedia("(max-width: 760px)").matches) byId("drawer").open = false;
  makeCharts();
  makeControls();
  makeExports();
  makeCopying();
  makeSymbols();
  makeTour();
  showControls();
  refresh(performance.now());
  document.body.dataset.ready = "true";
}

start();
