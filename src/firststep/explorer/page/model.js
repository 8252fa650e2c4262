// What the page knows: one object that all parts share, and the questions one asks about it.

export const byId = (id) => document.getElementById(id);
const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;

export const token = meta("firststep-token");
export const isStatic = meta("firststep-mode") === "static";
export const client = crypto.randomUUID ? crypto.randomUUID() : String(performance.timeOrigin).replace(".", "-");

export const model = {
  choices: null,
  state: null,
  curves: null, // the last answer for the problem shown
  spectra: { features: null, weights: null },
  critical: null, // steps at which spikes leave the bulk
  network: null, // a drawn network
  simulated: null,
  second: null, // the second step after the first one at the slider's position
  secondPoints: null, // simulated, after two steps
  kept: [], // simulated points of problems shown before
  histograms: [],
  job: null,
  from: null, // where a static page stands in its grid
  shown: { errors: "test", cloud: "after", second: "test", level: null },
  guess: null, // guessed test errors, while the theory is hidden
};

// Times from a control's event to the new picture, for benchmarks.
export const timings = { curves: [], spectrum: [], local: [] };
window.firststepTimings = timings;

export function clock(name, started) {
  requestAnimationFrame(() => timings[name].push(performance.now() - started));
}

const same = (a, b, leftOut) =>
  a && b && Object.keys(model.choices.defaults).every((name) => leftOut.includes(name) || String(a[name] ?? "") === String(b[name] ?? ""));
export const sameProblem = (a, b) => same(a, b, ["step_exponent", "next_step_exponent"]);
export const sameButSecond = (a, b) => same(a, b, ["next_step_exponent"]);
export const sameSpectrum = (a, b) => same(a, b, model.choices.not_in_spectra);
export const sameBulk = (a, b) => same(a, b, [...model.choices.not_in_spectra, "step_exponent", "next_step_exponent"]);

// Whether there is a second step.
export const isTwice = (state = model.state) => state?.next_step_exponent !== null && state?.next_step_exponent !== undefined;

export function indexOf(alpha) {
  let best = 0;
  model.choices.exponents.forEach((value, i) => {
    if (Math.abs(value - alpha) < Math.abs(model.choices.exponents[best] - alpha)) best = i;
  });
  return best;
}

export const onGrid = (alpha) => Math.abs(model.choices.exponents[indexOf(alpha)] - alpha) < 1e-9;

export const isHere = (curves, state) => curves.here !== null && Math.abs(curves.here.exponent - state.step_exponent) < 1e-6;

// Everything shown at the slider's position.
export function position() {
  const { curves, state } = model;
  if (!curves) return null;
  if (curves.here && (!onGrid(state.step_exponent) || isHere(curves, state))) return curves.here;
  return curves.positions[indexOf(state.step_exponent)];
}

export function query(values = model.state) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && String(value) !== String(model.choices.defaults[name] ?? "")) parameters.set(name, value);
  }
  return parameters.toString();
}

// Where a static page stands.
export function gridAddress() {
  const { from, state } = model;
  const second = isTwice() ? { next_step_exponent: state.next_step_exponent } : {};
  return new URLSearchParams({ ...from, step_exponent: state.step_exponent, ...second });
}

// Whether a field of the state is a number.
export const isNumeric = (name) => typeof model.choices.defaults[name] === "number" || ["step_size", "next_step_exponent"].includes(name);

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

let toastTimer = null;
export function toast(sentence) {
  const node = byId("toast");
  node.textContent = sentence;
  node.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (node.hidden = true), 2600);
}

let speech = null;
export function speak(sentence) {
  clearTimeout(speech);
  speech = setTimeout(() => (byId("spoken").textContent = sentence), 900);
}
