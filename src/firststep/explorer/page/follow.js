// From a change of the state to new pictures.

import { drawCurves, drawMarks, drawSpectrum, noSpectrum } from "./drawings.js";
import { byId, clock, indexOf, isHere, isStatic, isTwice, model, onGrid, sameBulk, sameButSecond, sameProblem, sameSpectrum } from "./model.js";
import { drawNetwork } from "./network.js";
import { drawSecond, lookUpSecond } from "./second.js";
import { asker, attempt, order, source } from "./sources.js";

const SETTLE = 220;
// Simulated points of earlier problems that stay in view.
const KEPT = 2;

// What else wants to know: the controls, the address, the lessons.
const listeners = { change: [], drawn: [] };
export const on = (what, call) => listeners[what].push(call);
const tellAll = (what, ...given) => {
  for (const call of listeners[what]) call(...given);
};

export function change(values, started = performance.now(), how = "control") {
  model.state = { ...model.state, ...values };
  byId("message").hidden = true;
  tellAll("change", how);
  refresh(started);
}

let settle = null;
let waiting = 0;
export function refresh(started) {
  const { state } = model;
  clearTimeout(settle);
  document.body.dataset.settled = "false";
  const turn = ++waiting;
  const local = sameProblem(model.curves?.state, state) && onGrid(state.step_exponent) && !state.step_size;
  if (local) {
    model.curves.state = { ...state };
    leave(state);
    drawCurves();
    drawNetwork();
    clock("local", started);
    finish(turn);
  } else {
    document.body.classList.add("busy");
    putAside();
    followCurves(started);
  }
  for (const of of Object.keys(following)) followSpectrum(of, started);
}

// Where only one position was exact, another is as good as the curves.
function leave(state) {
  const { curves } = model;
  if (curves.quality === "fair" && !curves.draft && !isHere(curves, state)) Object.assign(curves, { draft: true, finer: "exact" });
}

// Points of a problem that is left stay in view, paler.
function putAside() {
  const { simulated, state, job } = model;
  if (!simulated || sameProblem(simulated.state, state) || job?.status === "running") return;
  model.kept = [...model.kept.filter((entry) => !sameProblem(entry.state, simulated.state)), simulated].slice(-KEPT);
  model.simulated = model.kept.find((entry) => sameProblem(entry.state, state)) ?? null;
  byId("simulation-text").textContent = "";
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
  document.body.classList.remove("refining");
  asker.drop("finer");
  const found = await attempt(() => source.curves("draft"), goBack);
  curvesBusy = false;
  const next = curvesNext;
  curvesNext = null;
  const { state } = model;
  const moved = next !== null && !(sameProblem(found?.state, state) && onGrid(state.step_exponent) && !state.step_size);
  // The next question is on its way while this answer is drawn.
  if (moved) followCurves(next);
  if (!found) return;
  accept(found, !moved);
  clock("curves", started);
  if (!moved) finish(waiting);
}

// What cannot be computed is said, and the last state that could stands again.
function goBack() {
  if (!model.curves || curvesNext !== null) return;
  model.state = { ...model.curves.state };
  tellAll("change", "answer");
  document.body.dataset.settled = String(!model.curves.draft);
  for (const of of Object.keys(following)) followSpectrum(of, performance.now());
}

function accept(found, newest = true) {
  const asked = model.state;
  model.curves = found;
  document.body.classList.toggle("busy", !newest);
  if (newest && (asked.step_size || sameProblem(found.state, asked))) {
    const moved = !asked.step_size && onGrid(asked.step_exponent);
    model.state = { ...found.state, step_exponent: moved ? asked.step_exponent : found.state.step_exponent, next_step_exponent: asked.next_step_exponent };
    model.curves.state = { ...model.state };
    leave(model.state);
    tellAll("change", "answer");
  }
  drawCurves();
}

function finish(turn) {
  if (model.curves.draft) settle = setTimeout(() => refine(turn), SETTLE);
  else settled(turn);
}

// At rest one better answer after the other, one request at a time: the step may move meanwhile. Everything else goes
// on beside the last of them.
let refinedState = null;
async function refine(turn) {
  if (refinedState && sameProblem(refinedState, model.state)) return;
  const asked = { ...model.state };
  const { finer, quality } = model.curves;
  if (quality === "fair" && finer === "exact") lookAround(turn);
  refinedState = asked;
  document.body.classList.add("refining");
  const found = await attempt(() => source.finer(finer));
  if (refinedState === asked) refinedState = null;
  if (!sameProblem(asked, model.state) || refinedState || curvesBusy) return;
  document.body.classList.remove("refining");
  if (found) accept(found);
  if (found && model.curves.draft) refine(waiting);
  // Where exact curves take too long the draft stays, marked as one.
  else settled(waiting);
}

// The numbers shown are final.
function settled(turn) {
  document.body.dataset.settled = "true";
  tellAll("drawn");
  lookAround(turn);
}

function lookAround(turn) {
  settle = setTimeout(() => {
    lookUpSecond();
    lookUpSimulated(turn);
    lookUpNetwork();
    settle = setTimeout(lookUpCritical, 2 * SETTLE);
  }, SETTLE);
}

async function lookUpSimulated(turn) {
  const twice = isTwice();
  const known = sameProblem(model.simulated?.state, model.state) && (!twice || sameButSecond(model.secondPoints?.state, model.state));
  if (known || model.job?.status === "running") return;
  const asked = { ...model.state };
  const found = await source.simulated().catch(() => null);
  if (turn !== waiting || !found) return;
  if (found.second) model.secondPoints = { state: asked, points: found.second };
  if (found.second) drawSecond();
  if (!found.points) return;
  model.simulated = { state: asked, points: found.points };
  byId("simulation-text").textContent = `${found.points.replicas} replicas found in the store.`;
  drawCurves();
}

// Only while they are in view, since they cost the server some tenths of a second, and the features' spectrum after two
// steps some seconds.
const seen = { network: false, spectrum: false };
function watch(name, look) {
  new IntersectionObserver((entries) => {
    seen[name] = entries.at(-1).isIntersecting;
    if (seen[name]) look();
  }, { rootMargin: "160px" }).observe(byId(`view-${name}`));
}

export function watchViews() {
  watch("network", lookUpNetwork);
  watch("spectrum", () => model.state && followSpectrum("features", performance.now()));
}

async function lookUpNetwork() {
  if (!seen.network || !model.state || (model.network && sameProblem(model.network.state, model.state))) return;
  const asked = { ...model.state };
  const found = await source.network().catch(() => null);
  if (!found || !sameProblem(asked, model.state)) return;
  model.network = { ...found, state: asked };
  drawNetwork();
}

async function lookUpCritical() {
  if (model.critical && sameBulk(model.critical.state, model.state)) return;
  // The same process refines the spectrum, which somebody looks at.
  if (refining) return;
  const asked = { ...model.state };
  model.critical = null;
  drawMarks();
  const found = await source.critical().catch(() => null);
  if (!found || !sameBulk(asked, model.state)) return;
  model.critical = { ...found, state: asked };
  drawMarks();
}

const HOLDERS = { features: "chart-spectrum", weights: "chart-weights" };
const following = { features: { busy: false, next: null, rest: null }, weights: { busy: false, next: null, rest: null } };

async function followSpectrum(of, started) {
  const follow = following[of];
  if (!follow.busy && !model.state.step_size && sameSpectrum(model.spectra[of]?.state, model.state)) return;
  // The other view may just have taken its place.
  if (of === "features" && isTwice() && !(seen.spectrum && byId("view-spectrum").offsetParent)) return;
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
  if (!follow.busy && model.spectra[of]?.draft && !isStatic) follow.rest = setTimeout(() => exactSpectrum(of), 2 * SETTLE);
}

function acceptSpectrum(of, found) {
  model.spectra[of] = found;
  drawSpectrum(of);
  const holder = byId(HOLDERS[of]);
  holder.dataset.exponent = found.state.step_exponent;
  holder.dataset.exact = String(!found.draft);
  tellAll("drawn");
}

// At rest the density is refined until it settles; where that takes too long the draft stays.
let refining = 0;
async function exactSpectrum(of) {
  // The controls may have gone on to one that is not asked for yet.
  if (!sameSpectrum(model.spectra[of]?.state, model.state)) return;
  refining += 1;
  const found = await source.spectrum(of, "exact").catch(() => null);
  refining -= 1;
  if (found && sameSpectrum(found.state, model.spectra[of]?.state)) acceptSpectrum(of, found);
  lookUpCritical();
}

export async function startSimulation() {
  const text = byId("simulation-text");
  byId("simulate").disabled = true;
  try {
    const { ok, content } = await order("POST", "api/simulations", { state: { ...model.state, step_size: null }, replicas: Number(byId("replicas").value) });
    if (ok) {
      model.job = content;
      await followSimulation();
      return;
    }
    text.textContent = content.detail;
  } catch {
    text.textContent = "The server does not answer.";
  }
  byId("simulate").disabled = false;
}

async function followSimulation() {
  const text = byId("simulation-text");
  const bar = byId("progress");
  byId("cancel").hidden = false;
  byId("simulate").disabled = true;
  Object.assign(bar, { hidden: false, max: model.job.replicas, value: 0 });
  text.textContent = `drawing ${model.job.replicas} networks …`;
  while (["running", "cancelling"].includes(model.job.status)) {
    await new Promise((resolve) => setTimeout(resolve, 350));
    try {
      const answer = await fetch(`api/simulations/${model.job.id}`);
      model.job = await answer.json();
    } catch {
      model.job = { ...model.job, status: "failed", reason: "the server does not answer" };
    }
    showSimulation(bar, text);
  }
  const { job } = model;
  const endings = {
    finished: `${job.done} replicas done, kept in the store.`,
    cancelled: `Cancelled; ${job.done} replicas are kept in the store.`,
    failed: `The simulation failed: ${job.reason}`,
  };
  text.textContent = endings[job.status] || job.status;
  byId("cancel").hidden = true;
  byId("simulate").disabled = false;
  bar.hidden = true;
  // Whoever moved on meanwhile sees the points as those of an earlier problem.
  putAside();
  drawCurves();
  tellAll("drawn");
}

function showSimulation(bar, text) {
  const { job } = model;
  bar.value = job.done;
  if (job.status === "running") text.textContent = `${job.done} of ${job.replicas} replicas, ${Math.round(job.seconds)} s`;
  const twice = isTwice(job.state);
  if (job.points && twice) model.secondPoints = { state: job.state, points: job.points };
  if (job.points && !twice) model.simulated = { state: job.state, points: job.points };
  if (twice) drawSecond();
  if (job.spectra?.length) {
    model.histograms = job.spectra.map((entry) => ({ ...entry, state: job.state }));
    for (const of of ["features", "weights"]) drawSpectrum(of);
  }
  drawCurves();
}

export async function cancelSimulation() {
  if (!model.job) return;
  byId("simulation-text").textContent = "cancelling …";
  await order("DELETE", `api/simulations/${model.job.id}`);
}

// The step slider by itself, from where it stands or from the start.
let playing = null;
export function stopPlaying() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = "▶";
  byId("play").setAttribute("aria-label", "Play: move the step slider");
}

export function play() {
  if (playing) return stopPlaying();
  const { exponents } = model.choices;
  let place = indexOf(model.state.step_exponent);
  if (place >= exponents.length - 1) place = -1;
  byId("play").textContent = "⏸";
  byId("play").setAttribute("aria-label", "Pause");
  playing = setInterval(() => {
    if (++place >= exponents.length) return stopPlaying();
    change({ step_exponent: exponents[place], step_size: undefined }, performance.now(), "play");
  }, 140);
}
