// The second step: its slider, its charts, and the question after it once the other controls rest.

import { Chart, widened } from "./charts.js";
import { charts, legend, redrawAll, stageHeight } from "./drawings.js";
import { byId, isStatic, isTwice, model, sameButSecond } from "./model.js";
import { asker, source } from "./sources.js";

// Of the overlaps: the teacher's direction by colour, the vector of the weights by the kind of line.
const LINES = (line) => `overlap direction-${line.direction} vector-${line.rank}`;

const placeOf = (alpha) => {
  const grid = model.choices.next_exponents;
  return d3.minIndex ? d3.minIndex(grid, (each) => Math.abs(each - alpha)) : grid.reduce((best, each, i) => (Math.abs(each - alpha) < Math.abs(grid[best] - alpha) ? i : best), 0);
};
export const nextPlace = () => placeOf(model.state.next_step_exponent);
const answered = () => model.second && sameButSecond(model.second.state, model.state);

export function makeSecond(change) {
  const pick = (alpha) => answered() && change({ next_step_exponent: model.choices.next_exponents[placeOf(alpha)] });
  const under = (alpha) => {
    if (!answered() || model.second.refusal) return null;
    const place = placeOf(alpha);
    const { text } = model.second.positions[place];
    const overlaps = text.overlaps.map((entry) => `${entry.name}: ${entry.text}`);
    const shown = model.shown.second === "overlaps" ? overlaps : [`test ${text.test}${text.test_bar}`, `train ${text.train}`, `one step: test ${model.second.one_step.test}`];
    return { at: model.choices.next_exponents[place], lines: [`α₂ = ${text.alpha}, η₂ = ${text.eta}`, ...shown] };
  };
  charts.second = new Chart(byId("chart-second"), { label: "Errors after a second step against its exponent", height: stageHeight, onPick: pick, under });
  const slider = byId("next_step_exponent");
  const grid = model.choices.next_exponents;
  Object.assign(slider, { min: 0, max: grid.length - 1, step: 1 });
  slider.addEventListener("input", () => change({ next_step_exponent: grid[slider.value] }));
  byId("second-on").addEventListener("click", () => change({ next_step_exponent: isTwice() ? null : grid[placeOf(0.3)] }));
  for (const tab of document.querySelectorAll("[data-second]")) tab.addEventListener("click", () => showSecond(tab.dataset.second));
  for (const button of document.querySelectorAll("[data-beside]")) button.addEventListener("click", () => beside(button.dataset.beside));
  beside("second");
  showSecond("test");
}

function showSecond(name) {
  model.shown.second = name;
  for (const tab of document.querySelectorAll("[data-second]")) tab.setAttribute("aria-pressed", String(tab.dataset.second === name));
  drawSecond();
}

// Which of the two stands beside the errors.
function beside(name) {
  document.body.dataset.beside = name;
  drawSecond();
}

export function showSecondControls() {
  const before = document.body.classList.contains("two-steps");
  document.body.classList.toggle("two-steps", isTwice());
  const button = byId("second-on");
  button.hidden = !offered();
  button.setAttribute("aria-pressed", String(isTwice()));
  button.textContent = isTwice() ? "− step 2" : "+ step 2";
  byId("second-line").hidden = !isTwice();
  byId("told-second").hidden = !isTwice();
  // The slider's panel has become higher or lower.
  if (before !== isTwice()) redrawAll();
  if (!isTwice()) return;
  const slider = byId("next_step_exponent");
  const alpha = Number(model.state.next_step_exponent);
  if (Number(slider.value) !== nextPlace()) slider.value = nextPlace();
  if (document.activeElement !== byId("next-number")) byId("next-number").value = alpha.toFixed(2).replace("-", "−");
  slider.setAttribute("aria-valuetext", `α₂ = ${alpha}`);
  drawSecond();
}

// At rest: some seconds for a curve, so that a moving hand does not wait for it.
let busy = false;
export async function lookUpSecond() {
  if (!isTwice() || answered()) return;
  if (busy) asker.drop("second");
  busy = true;
  const asked = { ...model.state };
  showWaiting(true);
  let found = null;
  try {
    found = await source.second();
  } catch (error) {
    found = { refusal: error.message };
  }
  if (!found || !sameButSecond(asked, model.state)) return;
  busy = false;
  showWaiting(false);
  model.second = { ...found, state: asked, first: found.state?.step_exponent };
  drawSecond();
}

function showWaiting(yes) {
  byId("chart-second").classList.toggle("waiting", yes);
  byId("second-progress").hidden = !yes;
}

// A static page has it after some first steps only: which, where it is not the slider's own.
const afterWhich = () => (isStatic && Math.abs(model.second.first - model.state.step_exponent) > 1e-9 ? `, after α = ${model.second.first.toFixed(2)}` : "");

const drawnPoints = () => {
  const { secondPoints, state } = model;
  return secondPoints && sameButSecond(secondPoints.state, state) ? secondPoints.points : null;
};

export function drawSecond() {
  if (!isTwice() || !model.second || !charts.second) return;
  const { second, state } = model;
  if (second.refusal) {
    charts.second.say(`No theory of a second step here: ${second.refusal}`);
    byId("told-second").textContent = second.refusal;
    legend("second", []);
    return;
  }
  if (model.shown.second === "overlaps") drawOverlaps();
  else drawErrorsAfter(model.shown.second);
  const current = answered();
  const there = second.positions[nextPlace()].text;
  byId("next-eta").textContent = current ? there.eta : "–";
  byId("told-second").textContent = current && there.told ? `A second step, α₂ = ${there.alpha}, ${there.told}.` : "The second step is being computed …";
  if (!byId("second-progress").hidden && current) showWaiting(false);
  byId("next_step_exponent").setAttribute("aria-valuetext", `α₂ = ${there.alpha}: test error ${there.test}`);
  charts.second.svg.dataset.exponent = String(state.next_step_exponent);
}

function drawErrorsAfter(name) {
  const { second, state } = model;
  const panel = second.panels[name];
  const points = drawnPoints();
  const found = points?.[name];
  const draw = (chart) => {
    const ends = found ? found.mean.flatMap((mean, i) => [mean - found.stderr[i], mean + found.stderr[i]]) : [];
    chart.frame(second.x, widened(panel.y, ends));
    chart.band(second.exponents, panel.errors.map((y, i) => y - panel.bar[i]), panel.errors.map((y, i) => y + panel.bar[i]), "band");
    chart.across(panel.one_step, "one-step");
    chart.path(second.exponents, panel.errors, "theory");
    if (found) chart.points(points.exponents, found.mean, found.stderr, "simulation");
  };
  const there = second.positions[nextPlace()].text;
  charts.second.show(draw, `At α₂ = ${there.alpha}: ${there[name]}; after one step ${second.one_step[name]}.`, {
    key: [panel, points, name],
    moving: (chart) => chart.here(Number(state.next_step_exponent), panel.errors[nextPlace()]),
  });
  legend("second", [["theory", `theory, two steps${afterWhich()}`], ["band", "its error bar"], ["one-step", "after the first step alone"], ...(found ? [["simulation", "simulation ± 1 s.e."]] : [])]);
}

function drawOverlaps() {
  const { second, state } = model;
  const { lines, y } = second.overlaps;
  const points = drawnPoints();
  const draw = (chart) => {
    chart.frame(second.x, y);
    for (const line of lines) {
      chart.path(second.exponents, line.values, LINES(line));
      const drawn = points?.[line.key];
      if (drawn) chart.points(points.exponents, drawn.mean, drawn.stderr, `overlap-points direction-${line.direction}`);
    }
  };
  const there = second.positions[nextPlace()].text;
  charts.second.show(draw, there.overlaps.map((entry) => `${entry.name}: ${entry.text}`).join(", "), {
    key: [lines, points],
    moving: (chart) => chart.here(Number(state.next_step_exponent), null),
  });
  legend("second", [...lines.map((line) => [LINES(line), `${line.name}${afterWhich()}`]), ...(points ? [["simulation", "singular vectors of drawn networks"]] : [])]);
}

// A static page has it for the presets that begin with it.
const offered = () => !isStatic || isTwice(model.choices.presets[model.from.preset].state);
