// The inputs' spectrum, drawn by hand: bars are eigenvalues of equal shares of the directions, dots the teacher's share.

import { element } from "./charts.js";
import { charts } from "./drawings.js";
import { byId, isStatic, model, toast } from "./model.js";

// Nearest that a level or a share comes to nothing, and pixels around a dot in which it is meant and not its bar.
const LEAST = 0.02;
const NEAR = 9;

const written = (name, values) => `${name}(${values.map((value) => Number(value.toFixed(3))).join(", ")})`;

// One of several numbers with a fixed sum is set; the others shrink or grow together.
function withOne(values, place, value, total) {
  const most = total - LEAST * (values.length - 1);
  const wanted = Math.min(most, Math.max(LEAST, value));
  const others = total - values[place];
  return values.map((each, i) => (i === place ? wanted : Math.max(LEAST / 10, (each * (total - wanted)) / others)));
}

export function makeInputs(change) {
  const holder = byId("chart-inputs");
  const { svg } = charts.inputs;
  let held = null; // { place, dot, levels, shares }
  const place = (event) => {
    const { levels } = model.curves.inputs.editable;
    const chart = charts.inputs;
    const along = (chart.along(event) / chart.x.domain()[1]) * levels.length;
    return Math.min(levels.length - 1, Math.max(0, Math.floor(along)));
  };
  const set = (which, dot, value) => {
    const { levels, shares } = held ?? model.curves.inputs.editable;
    const many = levels.length;
    if (dot) change({ inputs: written("levels", levels), alignment: written("weights", withOne(shares, which, value, many)) });
    else change({ inputs: written("levels", withOne(levels, which, value, many)), ...(model.state.alignment.startsWith("weights") ? { alignment: written("weights", shares) } : {}) });
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button || isStatic || !model.curves?.inputs || !charts.inputs.x) return;
    const { editable, isotropic, loud } = model.curves.inputs;
    if (loud) {
      toast("A loud direction is changed in words: spiked(strength, overlap=…). Choose levels to draw by hand.");
      return;
    }
    const which = place(event);
    const height = charts.inputs.py(editable.shares[which]);
    const dot = !isotropic && Math.abs(event.clientY - svg.getBoundingClientRect().top - height) < NEAR;
    held = { place: which, dot, ...editable };
    svg.setPointerCapture(event.pointerId);
    holder.classList.add("held");
    event.preventDefault();
  });
  svg.addEventListener("pointermove", (event) => held && set(held.place, held.dot, charts.inputs.up(event)));
  for (const end of ["pointerup", "pointercancel"]) {
    svg.addEventListener(end, () => {
      held = null;
      holder.classList.remove("held");
    });
  }
  // By keys: left and right choose a level, up and down change it; with Shift the teacher's share of it.
  let chosen = 0;
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("keydown", (event) => {
    if (isStatic || !model.curves?.inputs || model.curves.inputs.loud) return;
    const { levels, shares } = model.curves.inputs.editable;
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const up = { ArrowUp: 1.1, ArrowDown: 1 / 1.1 }[event.key];
    if (!side && !up) return;
    event.preventDefault();
    event.stopPropagation();
    chosen = Math.min(levels.length - 1, Math.max(0, chosen + (side || 0)));
    model.shown.level = chosen;
    if (up) set(chosen, event.shiftKey, (event.shiftKey ? shares : levels)[chosen] * up);
    else drawInputs(model.curves.inputs);
  });
  svg.addEventListener("blur", () => {
    model.shown.level = null;
    if (model.curves) drawInputs(model.curves.inputs);
  });
}

export function drawInputs(inputs) {
  if (!inputs) return;
  const count = inputs.eigenvalues.length;
  const { levels } = inputs.editable;
  charts.inputs.show((chart) => {
    chart.frame({ domain: [0, count], ticks: [], label: "directions, largest variance first" }, inputs.y, { bottom: 24 });
    chart.bars([...Array(count + 1).keys()], inputs.eigenvalues, "eigenvalue");
    inputs.teacher.forEach((share, i) => element("circle", { cx: chart.px(i + 0.5), cy: chart.py(share), r: count > 10 ? 2.4 : 4, class: "share" }, chart.plot));
    const { level } = model.shown;
    if (level !== null) element("rect", { x: chart.px((level * count) / levels.length), y: chart.top, width: chart.px(count / levels.length) - chart.px(0), height: chart.bottom - chart.top, class: "chosen" }, chart.plot);
  }, "Bars are eigenvalues of the inputs' covariance, dots the teacher's share; arrow keys choose and change a level, with Shift the share", { key: [inputs, model.shown.level] });
}
