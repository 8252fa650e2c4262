// The controls: made from what the server says there is, refused where it says no, and the way back.

import { drawCurves, drawMarks } from "./drawings.js";
import { cancelSimulation, change, on, play, startSimulation, stopPlaying } from "./follow.js";
import { byId, gridAddress, indexOf, isNumeric, isStatic, model, position, query, sameProblem } from "./model.js";
import { showSecondControls } from "./second.js";
import { source } from "./sources.js";

const SLIDERS = ["noise_std", "n_samples", "dim_per_sample", "width_per_sample", "step_samples_per_sample", "ridge"];
const NAMES = { activation: () => model.choices.activations, teacher: () => [...model.choices.teachers, ...model.choices.several] };
// Fields with a place of their own in the page; the others are made from their declaration.
const PLACED = ["activation", "teacher", "noise_std"];
const ROOTS = { 1: "h1", 2: "h2/sqrt(2)", 3: "h3/sqrt(6)", 4: "h4/sqrt(24)" };

const made = () => model.choices.fields.filter((field) => !PLACED.includes(field.name) && ["choice", "words"].includes(field.kind));

function fill(select, values, texts = values) {
  select.replaceChildren(...values.map((value, i) => new Option(texts[i], value)));
}

function node(name, attributes, ...children) {
  const found = Object.assign(document.createElement(name), attributes);
  found.append(...children);
  return found;
}

// A control for a field that is declared as a choice or as words with examples.
function makeField(field) {
  const words = field.name.replaceAll("_", " ");
  const title = words[0].toUpperCase() + words.slice(1);
  const label = node("label", { htmlFor: field.name, textContent: `${title} `, title: field.help });
  if (field.symbol) label.append(node("span", { className: "letter", textContent: field.symbol }));
  const select = node("select", { id: field.kind === "words" ? `${field.name}-name` : field.name, title: field.help });
  const box = node("div", { className: "field" }, label, select);
  if (field.kind !== "words") {
    const options = Object.entries(field.choices);
    fill(select, options.map(([value]) => value), options.map(([value]) => value.replaceAll("_", " ")));
    options.forEach(([, meaning], i) => (select.options[i].title = meaning));
    select.addEventListener("change", () => typed(field.name, select, select.value));
    return box;
  }
  label.htmlFor = select.id;
  fill(select, [...field.examples, ""], [...field.examples, "in words …"]);
  const input = node("input", { id: field.name, type: "text", maxLength: 200, spellcheck: false, hidden: true });
  input.setAttribute("aria-label", `${title} in words`);
  select.addEventListener("change", () => {
    input.hidden = select.value !== "";
    if (select.value) typed(field.name, select, select.value);
    else input.focus();
  });
  input.addEventListener("change", () => typed(field.name, input, input.value.trim()));
  box.append(input);
  return box;
}

export function makeControls() {
  const { choices } = model;
  for (const field of made()) byId(field.part === "network" ? "fields-network" : "fields-more").append(makeField(field));
  byId("more").hidden = !byId("fields-more").childElementCount;
  for (const [name, list] of Object.entries(NAMES)) {
    fill(byId(`${name}-name`), [...list(), ""], [...list(), "expression …"]);
    byId(`${name}-name`).addEventListener("change", (event) => {
      const value = event.target.value;
      event.target.closest("fieldset").querySelector(".expression").hidden = value !== "";
      if (value) typed(name, event.target, value);
      else byId(name).focus();
    });
    byId(name).addEventListener("change", (event) => typed(name, event.target, event.target.value.trim()));
  }
  for (const name of SLIDERS) {
    const slider = byId(`${name}-slider`);
    Object.assign(slider, { min: 0, max: choices.ladders[name].length - 1, step: 1 });
    slider.addEventListener("input", () => change({ [name]: choices.ladders[name][slider.value] }));
    byId(name).addEventListener("change", (event) => typed(name, event.target, event.target.value.trim()));
  }
  for (const slider of document.querySelectorAll(".hermite input")) slider.addEventListener("input", composeTeacher);
  // Sizes themselves in place of ratios: d = 20 at any n.
  for (const input of document.querySelectorAll("[data-size]")) input.addEventListener("change", () => typedSize(input));
  makeStep();
  choices.presets.forEach((preset, i) => byId("preset").append(new Option(preset.name, i)));
  byId("preset").addEventListener("change", (event) => {
    const preset = choices.presets[event.target.value];
    if (preset) choosePreset(Number(event.target.value));
  });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  byId("simulate").addEventListener("click", startSimulation);
  byId("cancel").addEventListener("click", cancelSimulation);
  for (const tab of document.querySelectorAll("[data-errors]")) tab.addEventListener("click", () => showErrors(tab.dataset.errors));
  showErrors("test");
  makeNumbers();
  on("change", showControls);
  if (isStatic) restrictToGrid();
}

export function choosePreset(place, more = {}) {
  if (isStatic) moveTo({ preset: place, ...model.choices.start });
  change({ ...model.choices.defaults, ...model.choices.presets[place].state, step_size: undefined, ...more });
}

function makeStep() {
  const step = byId("step_exponent");
  const grid = model.choices.exponents;
  Object.assign(step, { min: 0, max: grid.length - 1, step: 1 });
  step.addEventListener("input", () => {
    stopPlaying();
    change({ step_exponent: grid[step.value], step_size: undefined });
  });
  const plain = (event) => event.target.value.trim().replace("−", "-");
  byId("alpha-number").addEventListener("change", (event) => typed("step_exponent", event.target, plain(event), { step_size: undefined }));
  byId("eta-number").addEventListener("change", (event) => typed("step_size", event.target, plain(event)));
  byId("next-number").addEventListener("change", (event) => typed("next_step_exponent", event.target, plain(event)));
  byId("play").addEventListener("click", play);
  drawMarks();
}

// Which of the error's three pictures is shown.
export function showErrors(name) {
  model.shown.errors = name;
  for (const tab of document.querySelectorAll("[data-errors]")) tab.setAttribute("aria-pressed", String(tab.dataset.errors === name));
  for (const each of ["test", "train", "parts"]) byId(`chart-${each}`).hidden = each !== name;
  if (model.curves) drawCurves();
}

// A value that was typed or chosen: refused beside its field, the old one kept, or taken.
async function typed(name, field, value, more = {}) {
  if (isStatic) return;
  const candidate = { ...model.state, ...more, [name]: value };
  if (name !== "step_size") delete candidate.step_size;
  const found = await source.check(new URLSearchParams(query(candidate))).catch(() => null);
  const refusal = found?.refused.find((entry) => entry.field === name) || found?.refused[0];
  if (refusal) {
    field.blur();
    showControls();
    // Where words were being written they can be written again.
    field.closest(".expression")?.removeAttribute("hidden");
    if (field.type === "text") field.hidden = false;
    refuse(field, refusal.sentence);
    return;
  }
  const number = Number(value);
  change({ ...more, [name]: isNumeric(name) && value !== "" && !Number.isNaN(number) ? number : value });
}

// A size itself: whole, in the command line's sentences, then handed on as the ratio that the state has.
const SIZES = { dim_per_sample: "dim", width_per_sample: "width", step_samples_per_sample: "n_step_samples" };
function typedSize(input) {
  const text = input.value.trim();
  const size = Number(text);
  const wrong = text === "" || !Number.isInteger(size) ? `'${text}' is not a whole number` : size < 2 ? `${SIZES[input.dataset.size]} must be at least 2 here, got ${size}` : "";
  if (!wrong) return typed(input.dataset.size, input, String(size / Math.round(Number(model.state.n_samples))));
  input.blur();
  showControls();
  return refuse(input, wrong);
}

let refusedTimer = null;
export function refuse(field, sentence) {
  forgive();
  const box = node("p", { className: "refusal", id: "refusal", textContent: sentence });
  box.setAttribute("role", "alert");
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", "refusal");
  (field.closest(".slider, .field, .sizes, .step-line") || field).after(box);
  refusedTimer = setTimeout(forgive, 12000);
}

function forgive() {
  clearTimeout(refusedTimer);
  byId("refusal")?.remove();
  for (const field of document.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
}

function composeTeacher() {
  const terms = [...document.querySelectorAll(".hermite input")]
    .filter((slider) => Number(slider.value) !== 0)
    .map((slider) => `${slider.value}*${ROOTS[slider.dataset.degree]}`);
  change({ teacher: (terms.join(" + ") || "0*h1").replaceAll("+ -", "- ") });
}

// Numbers in the sentence are controls: drag them sideways, or use the arrow keys.
function makeNumbers() {
  for (const number of document.querySelectorAll(".scrub")) {
    const name = number.dataset.field;
    const ladder = () => (name === "step_exponent" ? model.choices.exponents : model.choices.ladders[name]);
    const place = () => (name === "step_exponent" ? indexOf(model.state.step_exponent) : nearest(ladder(), model.state[name]));
    const move = (by, from = place()) => {
      const to = Math.min(ladder().length - 1, Math.max(0, from + by));
      if (to === place()) return;
      if (isStatic && name !== "step_exponent") byId(`${name}-slider`).value = to;
      if (isStatic && name !== "step_exponent") byId(`${name}-slider`).dispatchEvent(new Event("input", { bubbles: true }));
      else change({ [name]: ladder()[to], ...(name === "step_exponent" ? { step_size: undefined } : {}) });
    };
    number.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      move(by);
    });
    let start = null;
    number.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      number.focus();
      start = { x: event.clientX, place: place() };
      number.setPointerCapture(event.pointerId);
    });
    number.addEventListener("pointermove", (event) => start && move(Math.round((event.clientX - start.x) / 7), start.place));
    for (const end of ["pointerup", "pointercancel"]) number.addEventListener(end, () => (start = null));
  }
}

function nearest(ladder, value) {
  let best = 0;
  ladder.forEach((each, i) => {
    if (Math.abs(each - value) < Math.abs(ladder[best] - value)) best = i;
  });
  return best;
}

export function showControls() {
  const { choices, state, curves } = model;
  forgive();
  for (const [name, list] of Object.entries(NAMES)) {
    const known = list().includes(state[name]);
    byId(`${name}-name`).value = known ? state[name] : "";
    byId(name).value = state[name];
    byId(`${name}-name`).closest("fieldset").querySelector(".expression").hidden = known;
  }
  for (const field of made()) showField(field);
  for (const name of SLIDERS) {
    const slider = byId(`${name}-slider`);
    const best = nearest(choices.ladders[name], state[name]);
    if (Number(slider.value) !== best) slider.value = best;
    const shown = String(Number(state[name]) >= 1e6 ? Number(state[name]).toExponential().replace("e+", "e") : state[name]);
    if (document.activeElement !== byId(name)) byId(name).value = shown;
    slider.setAttribute("aria-valuetext", shown);
  }
  for (const input of document.querySelectorAll("[data-size]")) {
    const size = Math.round(Number(state[input.dataset.size]) * Math.round(Number(state.n_samples)));
    if (document.activeElement !== input) input.value = size >= 1e6 ? size.toExponential(3).replace(/\.?0*e\+/, "e") : size;
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
    if (document.activeElement !== byId("eta-number")) byId("eta-number").value = here.text.eta.replace(/·10(.+)/, (_, power) => `e${[...power].map((letter) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹".indexOf(letter)).map((i) => (i ? i - 1 : "-")).join("")}`);
  }
  showSecondControls();
  const preset = choices.presets.findIndex((entry) => sameProblem({ ...choices.defaults, ...entry.state }, state));
  byId("preset").value = isStatic ? model.from.preset : preset < 0 ? "" : preset;
}

function showField(field) {
  const value = model.state[field.name] ?? field.default;
  if (field.kind !== "words") {
    byId(field.name).value = value;
    return;
  }
  const known = field.examples.includes(value);
  byId(`${field.name}-name`).value = known ? value : "";
  byId(field.name).value = value;
  byId(field.name).hidden = known;
}

// A static page knows some values of n and of the ridge only, others for each preset.
function moveTo(place) {
  model.from = place;
  const { choices } = model;
  choices.ladders = { ...choices.ladders, ...choices.grids[place.preset] };
  for (const name of ["n_samples", "ridge"]) byId(`${name}-slider`).max = choices.ladders[name].length - 1;
}

function restrictToGrid() {
  document.body.classList.add("static");
  moveTo(model.from);
  for (const control of document.querySelectorAll("#form input, #form select, #alpha-number, #eta-number, #next-number")) control.disabled = true;
  for (const [name, place] of [["n_samples", "n"], ["ridge", "ridge"]]) {
    const slider = byId(`${name}-slider`);
    slider.disabled = false;
    slider.addEventListener("input", () => (model.from[place] = Number(slider.value)), { capture: true });
  }
  byId("simulation").hidden = true;
  for (const number of document.querySelectorAll(".scrub")) if (number.dataset.field === "noise_std") number.classList.add("fixed");
}

// The way back: each rest of the controls is a place in the browser's own history, so that Back undoes.
let places = { now: 0, last: 0 };
let timer = null;
export const pausing = { history: false };

function addressNow() {
  const shown = isStatic ? gridAddress().toString() : query();
  return isStatic ? `#${shown}` : shown ? `?${shown}` : location.pathname;
}

function write(how, content) {
  try {
    history[how](content, "", addressNow());
  } catch {
    history[how](content, "");
  }
}

export function makeHistory() {
  let before = null;
  const snapshot = () => ({ state: { ...model.state }, from: model.from && { ...model.from } });
  const key = () => addressNow();
  const entered = (place) => {
    places.now = place;
    places.last = Math.max(places.last, place);
    byId("undo").disabled = place === 0;
    byId("redo").disabled = place >= places.last;
    before = key();
  };
  write("replaceState", { place: 0, ...snapshot() });
  entered(0);
  on("change", (how) => {
    clearTimeout(timer);
    if (pausing.history || how === "back") return;
    // What the server answers completes the state; it is no step of one's own.
    timer = setTimeout(() => {
      if (pausing.history || key() === before) return;
      places.last = places.now + 1;
      write("pushState", { place: places.now + 1, ...snapshot() });
      entered(places.now + 1);
    }, 350);
  });
  addEventListener("popstate", (event) => {
    if (!event.state?.state) return;
    clearTimeout(timer);
    restore(event.state);
    entered(event.state.place);
  });
  byId("undo").addEventListener("click", () => history.back());
  byId("redo").addEventListener("click", () => history.forward());
  byId("reset").addEventListener("click", () => (isStatic ? choosePreset(0) : change({ ...model.choices.defaults, step_size: undefined })));
}

export function restore({ state, from }) {
  if (isStatic && from) moveTo({ ...from });
  stopPlaying();
  model.state = { ...state };
  change({}, performance.now(), "back");
  byId("form").querySelectorAll("input").forEach((field) => field.blur());
  showControls();
}
