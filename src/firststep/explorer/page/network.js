// See the network: x → W → features → readout, some neurons before and after the step, and what is fitted.

import { Chart, element } from "./charts.js";
import { charts, legend, shared } from "./drawings.js";
import { byId, indexOf, model } from "./model.js";

const INPUTS = 6;

export function makeNetwork() {
  const tall = shared(2, 150, (width) => Math.min(300, Math.max(200, 0.8 * width)));
  const wide = shared(2, 150, (width) => Math.min(280, Math.max(190, 0.56 * width)));
  const make = (name, label, height) => (charts[name] = new Chart(byId(`chart-${name}`), { label, height }));
  make("scheme", "Inputs, first layer, features and readout", tall);
  make("before", "w·x of nine neurons against z before the step", tall);
  make("after", "w·x of nine neurons against z after the step", tall);
  make("unfitted", "Labels and the fitted network against z without a step", wide);
  make("fitted", "Labels and the fitted network against z after the step", wide);
}

// The colour of a neuron by its readout: the sign by hue, the size by strength.
const shade = (a, largest) => ({ class: a < 0 ? "negative" : "positive", "fill-opacity": 0.25 + (0.75 * Math.abs(a)) / largest, "stroke-opacity": 0.25 + (0.75 * Math.abs(a)) / largest });

export function drawNetwork() {
  const { network, state } = model;
  if (!network) return;
  const place = indexOf(state.step_exponent);
  const eta = network.etas[place];
  const largest = Math.max(...network.readout.map(Math.abs));
  const after = network.before.map((row, j) => row.map((value, i) => value + eta * network.change[j][i]));
  const reach = Math.max(4, ...after.flat().map(Math.abs));
  charts.scheme.show((paper) => drawScheme(paper, network, eta, largest), "Grey lines are W₀; the step adds a line along b to every neuron, as strong as its readout.");
  const { slopes } = network;
  fan("before", network, network.before, slopes.before, largest, 4, "w₀·x, before");
  fan("after", network, after, slopes.before.map((slope, j) => slope + eta * slopes.change[j]), largest, reach, "w₁·x, after");
  const at = place / network.every;
  const [low, share] = [Math.floor(at), at - Math.floor(at)];
  const between = (rows) => rows[low + 1].map((value, i) => (rows[low + 2] ? (1 - share) * value + share * rows[low + 2][i] : value));
  cloud("unfitted", network, network.fits[0], network.fitted[0], "without a step");
  cloud("fitted", network, between(network.fits), between(network.fitted), "after the step");
  const drawn = network.smaller ? `a smaller network of the same ratios, ${network.sizes}` : network.sizes;
  legend("network", [["positive", "a > 0"], ["negative", "a < 0, pale where |a| is small"], ["labels", "labels"], ["wanted-line", "their mean"], ["fits", "fitted network"], ["theory", "its mean"]]);
  byId("network-sizes").textContent = `One draw: ${drawn}. η = ${Number(eta.toPrecision(3))}.`;
}

const axisOf = (label, reach) => {
  const scale = d3.scaleLinear().domain([-reach, reach]).nice(4);
  const format = scale.tickFormat(4);
  return { label, domain: scale.domain(), ticks: scale.ticks(4).map((at) => ({ at, text: format(at).replace("-", "−") })) };
};

function fan(name, network, rows, slopes, largest, reach, label) {
  charts[name].show((paper) => {
    paper.frame(network.axes.z, axisOf(label, reach));
    paper.across(0, "zero");
    const order = network.readout.map((_, j) => j).sort((one, other) => Math.abs(network.readout[one]) - Math.abs(network.readout[other]));
    for (const j of order) {
      const group = element("g", shade(network.readout[j], largest), paper.plot);
      rows[j].forEach((value, i) => element("circle", { cx: paper.px(network.z[i]), cy: paper.py(value), r: 1.8 * Chart.type, class: "faint" }, group));
      element("line", { x1: paper.px(-2.8), x2: paper.px(2.8), y1: paper.py(-2.8 * slopes[j]), y2: paper.py(2.8 * slopes[j]), class: "slope" }, group);
    }
  }, `Nine neurons, coloured by their readout.`);
}

function cloud(name, network, fits, mean, title) {
  charts[name].show((paper) => {
    paper.frame(network.axes.z, network.axes.label, { top: 22 });
    paper.across(0, "zero");
    const dots = (values, kind) => {
      const group = element("g", { class: kind }, paper.plot);
      values.forEach((value, i) => element("circle", { cx: paper.px(network.cloud.z[i]), cy: paper.py(value), r: 2 * Chart.type }, group));
    };
    dots(network.cloud.labels, "labels");
    dots(fits, "fits");
    paper.path(network.at, network.teacher, "wanted-line");
    paper.path(network.at, mean, "theory");
    paper.note(paper.left + 8, paper.top - 6, title, { class: "name" });
  }, `Samples against z, ${title}.`);
}

function drawScheme(paper, network, eta, largest) {
  const { width, height } = paper;
  paper.x = null;
  paper.over = element("g", {}, paper.svg);
  const type = Chart.type;
  const columns = { x: 30 * type, b: 30 * type, neurons: width * 0.55, out: width - 26 * type };
  const top = 24 * type;
  const bottom = height - 26 * type;
  const count = network.readout.length;
  const neuron = (j) => top + ((bottom - top) * (j + 0.5)) / count;
  const input = (i) => top + ((bottom - top) * 0.62 * (i + 0.5)) / INPUTS;
  const direction = top + (bottom - top) * 0.86;
  const rank = network.readout.map((a, j) => [a, j]).sort((one, other) => other[0] - one[0]).map(([, j]) => j);
  const strength = (a) => 0.4 + 9 * Math.abs(a / largest) * (eta / network.etas.at(-1));
  const svg = paper.svg;
  rank.forEach((j, row) => {
    const a = network.readout[j];
    for (let i = 0; i < INPUTS; i++) element("line", { x1: columns.x, y1: input(i), x2: columns.neurons, y2: neuron(row), class: "weight" }, svg);
    element("line", { x1: columns.b, y1: direction, x2: columns.neurons, y2: neuron(row), "stroke-width": strength(a) * type, ...shade(a, largest) }, svg);
    element("line", { x1: columns.neurons, y1: neuron(row), x2: columns.out, y2: height / 2, class: "weight" }, svg);
  });
  for (let i = 0; i < INPUTS; i++) element("circle", { cx: columns.x, cy: input(i), r: 5 * type, class: "input" }, svg);
  element("circle", { cx: columns.b, cy: direction, r: 8 * type, class: "spike-dot" }, svg);
  rank.forEach((j, row) => {
    const a = network.readout[j];
    element("circle", { cx: columns.neurons, cy: neuron(row), r: 8 * type, class: "back" }, svg);
    element("circle", { cx: columns.neurons, cy: neuron(row), r: 8 * type, ...shade(a, largest) }, svg);
  });
  element("circle", { cx: columns.out, cy: height / 2, r: 9 * type, class: "output" }, svg);
  paper.note(columns.x, 12 * type, "x", { "text-anchor": "middle", class: "spike-name" });
  paper.note(columns.b + 13 * type, direction + 20 * type, "z = b·x/‖b‖", { "text-anchor": "start", class: "name" });
  paper.note(columns.neurons, 12 * type, "σ(W₁x), W₁ = W₀ + η c₁ a bᵀ + …", { "text-anchor": "middle", class: "name" });
  paper.note(columns.out, height / 2 - 15 * type, "f", { "text-anchor": "middle", class: "spike-name" });
  paper.note(columns.neurons, height - 6, "nine neurons, by readout a", { "text-anchor": "middle", class: "name" });
}
