// For people who learn and people who teach: a tour, things to cause, a guess, and a mode for an audience.

import { Chart } from "./charts.js";
import { choosePreset, pausing, restore, showErrors } from "./controls.js";
import { charts, drawCurves, drawMarks, redrawAll } from "./drawings.js";
import { change, on, play, startSimulation, stopPlaying } from "./follow.js";
import { byId, calm, indexOf, isStatic, model, position, sameProblem, toast } from "./model.js";

const staircase = () => model.choices.presets.findIndex((preset) => preset.name.startsWith("The staircase"));

// Each card says only what is beside it when it is shown.
const CARDS = [
  { view: "view-errors", state: { step_exponent: -0.1 }, title: "No step yet", body: () => "With a tiny step the network is a random-feature model. Its test error lies at the pink line, above the best linear predictor (dotted), whatever the activation." },
  { view: "view-spectrum", state: { step_exponent: 0.2 }, title: "A spike leaves the bulk", body: () => "Now α = 0.2. One eigenvalue stands apart from the bulk. Its singular vector is nearly z, the coordinate along the direction that the gradient found: see the overlap beside it." },
  { view: "view-learned", state: { step_exponent: 0.42 }, title: "A second degree is learned", body: () => "At α = 0.42 a second spike is out, which carries z². The fit captures a part of the teacher's degree 2 (the second bar), which no linear method can." },
  { view: "view-network", state: { step_exponent: 0.42 }, title: "What the step does to neurons", body: () => "Before the step w·x has nothing to do with z. The step adds η a b to every row: the neurons fan out along z, each as far as its readout a is large, and by its sign." },
  { view: "view-weights", state: { step_exponent: 0.3 }, title: "The weights turn to β", body: () => "In the weights there is one spike only. Once it is out of the bulk, its singular vector aligns with β, up to a bound set by the noise and by d/n₀." },
  { view: "view-errors", staircase: true, state: { step_exponent: 0.3 }, title: "Towards the staircase", body: () => "Another problem: all four degrees, n = 10¹². The line begins to follow the dotted levels of the limit, which change at α = 0, 1/4, 1/3 and 3/8. The steps emerge slowly: each is about 1/log n wide." },
  { view: "step", state: { step_exponent: 0.3 }, title: isStatic ? "Your turn" : "Is it true?", body: () => (isStatic ? "Drag the slider or any chart. Presets are at the top, n and the ridge at the left. The installed explorer draws networks beside the theory: firststep explore." : "Press Simulate to draw networks of this size: their points appear beside the line, their eigenvalues beside the bulk. When the tour ends, your own settings are back.") },
];

let tour = null; // { place, before }

function lit(id) {
  for (const node of document.querySelectorAll(".lit")) node.classList.remove("lit");
  if (id) byId(id).classList.add("lit");
}

function reveal(id) {
  // Below the card on a narrow screen, and below the step slider where that stays at the top.
  const narrow = tour && matchMedia("(max-width: 1000px)").matches;
  const card = narrow ? byId("tour").offsetHeight + 20 : 0;
  document.body.style.paddingTop = narrow ? `${card}px` : "";
  const first = ["view-errors", "view-spectrum", "step"].includes(id);
  const top = card + (first || narrow ? 10 : byId("step").offsetHeight + 12);
  const box = byId(id).getBoundingClientRect();
  // On a narrow screen the step slider stays at the bottom.
  const bottom = narrow && id !== "step" ? innerHeight - byId("step").offsetHeight : innerHeight;
  if (box.top >= top && box.bottom <= bottom) return;
  scrollTo({ top: Math.max(0, scrollY + box.top - top), behavior: narrow || calm() ? "auto" : "smooth" });
}

function cards() {
  return CARDS.filter((card) => !card.staircase || staircase() >= 0);
}

function showCard(place) {
  const list = cards();
  const card = list[place];
  tour.place = place;
  byId("tour-count").textContent = `${place + 1} of ${list.length}`;
  byId("tour-title").textContent = card.title;
  byId("tour-body").textContent = card.body();
  byId("tour-back").disabled = place === 0;
  byId("tour-next").textContent = place === list.length - 1 ? "Done" : "Next";
  if (card.view === "view-errors") showErrors("test");
  if (card.staircase) choosePreset(staircase(), card.state);
  else if (isStatic) choosePreset(0, card.state);
  else change({ ...model.choices.defaults, ...card.state, step_size: undefined });
  lit(card.view);
  reveal(card.view);
}

function startTour() {
  endTask();
  stopPlaying();
  tour = { place: 0, before: { state: { ...model.state }, from: model.from && { ...model.from } }, errors: model.shown.errors };
  pausing.history = true;
  // One entry of its own, so that Back ends the tour and does not leave the page.
  history.pushState({ tour: true }, "");
  document.body.classList.add("touring");
  byId("tour").hidden = false;
  showCard(0);
  byId("tour-next").focus();
}

// Whether by its buttons or by the browser's Back: what was set before is set again.
function endTour() {
  if (!tour) return;
  const { before, errors } = tour;
  tour = null;
  byId("tour").hidden = true;
  document.body.classList.remove("touring");
  document.body.style.paddingTop = "";
  lit(null);
  showErrors(errors);
  restore(before);
  pausing.history = false;
  scrollTo({ top: 0, behavior: calm() ? "auto" : "smooth" });
  byId("tour-start").focus({ preventScroll: true });
}

export function makeTour() {
  byId("tour-start").addEventListener("click", startTour);
  byId("tour-next").addEventListener("click", () => (tour.place === cards().length - 1 ? history.back() : showCard(tour.place + 1)));
  byId("tour-back").addEventListener("click", () => showCard(Math.max(0, tour.place - 1)));
  byId("tour-end").addEventListener("click", () => history.back());
  addEventListener("popstate", endTour);
  // New numbers may move things.
  on("drawn", () => tour && reveal(cards()[tour.place].view));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && tour) history.back();
  });
}

// Things to cause. Each knows when it has happened.
const spikes = () => (sameStep() ? model.spectra.features.outliers.length : 0);
const sameStep = () => model.spectra.features && Math.abs(model.spectra.features.state.step_exponent - model.state.step_exponent) < 1e-9;
const markOf = (k) => model.critical?.critical.find((entry) => entry.spike === k);
const found = (k) => {
  const mark = markOf(k);
  return `There: ${k === 1 ? "a" : "the second"} spike, at α = ${position().text.alpha}.${mark ? ` It leaves the bulk at α = ${mark.text}, now marked on the slider.` : ""}`;
};
const TASKS = [
  { name: "A spike", ask: "Drag the step slider until a spike leaves the bulk.", start: { step_exponent: -0.1 }, view: "view-spectrum", done: () => spikes() >= 1, after: () => found(1) },
  { name: "A second spike", ask: "Drag on until a second spike appears.", start: { step_exponent: 0.15 }, view: "view-spectrum", done: () => spikes() >= 2, after: () => found(2) },
  { name: "Half a parabola", ask: "Make the fit capture half of the teacher's degree 2. Any control may be moved.", start: { step_exponent: 0.3 }, view: "view-learned", done: () => { const { bars } = model.curves.learned; return bars.wanted[1] > 0.02 && position().captured[1] / bars.wanted[1] >= 0.5; }, after: () => `Yes: ${position().text.told}. Its own spike carries z²; the larger the step and the sample, the more of it is learned.` },
  { name: "Too large a step", ask: "Find the step with the smallest test error.", start: { step_exponent: 0.0 }, view: "view-errors", done: () => { const { unified } = model.curves.errors.panels.test; return indexOf(model.state.step_exponent) === unified.indexOf(Math.min(...unified.filter((y) => y !== null))); }, after: () => `α = ${position().text.alpha}, test error ${position().text.test}. Look at Parts: missed falls with the step, spread grows.` },
];
let task = null;

function startTask(place) {
  const chosen = TASKS[place];
  endGuess();
  task = { ...chosen, place, solved: false, armed: false };
  document.body.classList.add("seeking");
  drawMarks();
  byId("task").hidden = false;
  byId("task-title").textContent = `${place + 1} of ${TASKS.length}: ${chosen.name}`;
  byId("task-body").textContent = chosen.ask;
  byId("task-next").hidden = true;
  change({ ...chosen.start, step_size: undefined });
  lit(chosen.view);
  reveal(chosen.view);
}

function endTask() {
  if (!task) return;
  task = null;
  byId("task").hidden = true;
  document.body.classList.remove("seeking");
  drawMarks();
  lit(null);
}

function checkTask() {
  if (!task || task.solved || document.body.classList.contains("busy") || !model.curves) return;
  // It must not be so from the start: first it is seen not to hold.
  const holds = task.done();
  if (!holds) task.armed = true;
  if (!holds || !task.armed) return;
  task.solved = true;
  stopPlaying();
  document.body.classList.remove("seeking");
  drawMarks();
  byId("task-body").textContent = task.after();
  byId("task-next").hidden = task.place === TASKS.length - 1;
}

// Guess the test errors, then see.
function startGuess() {
  endTask();
  showErrors("test");
  byId("task").hidden = false;
  byId("task-title").textContent = "Guess, then see";
  byId("task-body").textContent = "The theory is hidden. Press in the chart where you expect the test error, at five steps or more.";
  byId("task-next").hidden = false;
  byId("task-next").textContent = isStatic ? "Show" : "Show and simulate";
  byId("task-next").disabled = true;
  model.guess = { points: [], revealed: false };
  document.body.classList.add("guessing");
  drawCurves();
  lit("view-errors");
  reveal("view-errors");
}

export function addGuess(alpha, error) {
  if (!model.guess || model.guess.revealed || model.shown.errors !== "test") return false;
  const x = model.choices.exponents[indexOf(alpha)];
  const points = [...model.guess.points.filter((point) => Math.abs(point.x - x) > 0.025), { x, y: error }];
  model.guess = { ...model.guess, points };
  byId("task-next").disabled = points.length < 5;
  byId("task-body").textContent = points.length < 5 ? `${points.length} of 5 guesses.` : "Good. Show the answer, or guess on.";
  drawCurves();
  return true;
}

function revealGuess() {
  model.guess = { ...model.guess, revealed: true };
  document.body.classList.remove("guessing");
  const { unified } = model.curves.errors.panels.test;
  const off = model.guess.points.map(({ x, y }) => Math.abs(y / unified[indexOf(x)] - 1));
  const mean = (100 * off.reduce((sum, value) => sum + value, 0)) / off.length;
  byId("task-body").textContent = `Your guesses are off by ${mean.toFixed(0)} % of the predicted error on average.${isStatic ? "" : " Networks are being drawn: which is nearer to them, the line or your guess?"}`;
  byId("task-next").hidden = true;
  drawCurves();
  if (!isStatic && !byId("simulate").disabled) startSimulation();
}

function endGuess() {
  if (!model.guess) return;
  model.guess = null;
  document.body.classList.remove("guessing");
  byId("task").hidden = true;
  byId("task-next").disabled = false;
  lit(null);
  if (model.curves) drawCurves();
}

export function makeTasks() {
  const menu = byId("task-menu");
  TASKS.forEach((entry, i) => menu.append(new Option(entry.name, i)));
  menu.append(new Option("Guess, then see", "guess"));
  menu.addEventListener("change", () => {
    const chosen = menu.value;
    menu.value = "";
    menu.blur();
    byId("task-next").disabled = false;
    byId("task-next").textContent = "Next";
    if (chosen === "guess") startGuess();
    else if (chosen) startTask(Number(chosen));
  });
  byId("task-next").addEventListener("click", () => (model.guess ? revealGuess() : startTask(task.place + 1)));
  byId("task-end").addEventListener("click", () => {
    endTask();
    endGuess();
  });
  on("drawn", checkTask);
  on("change", (how) => {
    // A guess belongs to the problem it was made for.
    if (model.guess && how !== "answer" && model.curves && !sameProblem(model.curves.state, model.state)) endGuess();
  });
}

// For an audience: large type, one view at a time, keys.
const EVERY_STAGE = ["both", "view-errors", "view-spectrum", "view-learned", "view-network", "view-weights", "view-second"];
// The second step's view only where there is a second step.
const stagesNow = () => EVERY_STAGE.filter((name) => name !== "view-second" || document.body.classList.contains("two-steps"));
let stage = 0;

function showStage(place) {
  const STAGES = stagesNow();
  stage = (place + STAGES.length) % STAGES.length;
  document.body.dataset.stage = STAGES[stage];
  for (const button of document.querySelectorAll("#stages button")) button.setAttribute("aria-pressed", String(button.dataset.stage === STAGES[stage]));
  redrawAll();
}

function present(yes) {
  document.body.classList.toggle("present", yes);
  Chart.type = yes ? (innerWidth > 1500 ? 1.75 : 1.4) : 1;
  byId("stages").hidden = !yes;
  byId("present").setAttribute("aria-pressed", String(yes));
  if (yes) {
    showStage(0);
    scrollTo(0, 0);
    // The space bar is for playing, not for the button that was pressed to get here.
    document.activeElement?.blur();
    toast("← → step · ↑ ↓ or 1 … 6 view, 0 both · space plays · S simulates · Esc ends");
  } else {
    delete document.body.dataset.stage;
  }
  redrawAll();
}

export function makePresentation() {
  byId("present").addEventListener("click", () => present(!document.body.classList.contains("present")));
  for (const button of document.querySelectorAll("#stages button")) button.addEventListener("click", () => showStage(stagesNow().indexOf(button.dataset.stage)));
  document.addEventListener("keydown", (event) => {
    if (!document.body.classList.contains("present") || event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input[type=text], select, textarea") || byId("copy-dialog").open;
    if (typing) return;
    const keys = { ArrowDown: () => showStage(stage + 1), PageDown: () => showStage(stage + 1), ArrowUp: () => showStage(stage - 1), PageUp: () => showStage(stage - 1), " ": play, s: () => !isStatic && byId("simulate").click(), Escape: () => !tour && present(false) };
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    // Digits are the numbers that views carry.
    const digit = "0123456".indexOf(event.key);
    if (step && !event.target.matches("input[type=range]")) {
      const { exponents } = model.choices;
      const place = Math.min(exponents.length - 1, Math.max(0, indexOf(model.state.step_exponent) + step));
      stopPlaying();
      change({ step_exponent: exponents[place], step_size: undefined });
    } else if (event.key.length === 1 && digit >= 0 && digit < stagesNow().length) showStage(digit);
    else if (keys[event.key] && !(event.key === " " && event.target.matches("button"))) keys[event.key]();
    else return;
    event.preventDefault();
  });
}
