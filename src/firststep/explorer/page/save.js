// Views as files: pictures fit for a slide, and tables.

import { SVG, dressed, element, pngOf, svgText, text } from "./charts.js";
import { charts, legends, sample } from "./drawings.js";
import { isTwice, model, position, sameButSecond, sameProblem } from "./model.js";

const VIEWS = {
  errors: { title: "Train and test error", charts: () => (model.shown.errors === "parts" ? ["parts"] : ["test", "train"]) },
  spectrum: { title: "The features' spectrum", after: () => stepsOf("features"), charts: () => ["spectrum"] },
  learned: { title: "What was learned", charts: () => ["bars", "function"] },
  network: { title: "The network before and after the step", charts: () => ["before", "after", "unfitted", "fitted"] },
  second: { title: "Errors after a second step", charts: () => ["second"] },
  weights: { title: "The weights", after: () => stepsOf("weights"), charts: () => ["weights", "alignment"] },
};
// After which steps a spectrum is, where there are two.
const stepsOf = (of) => {
  const found = model.spectra[of];
  if (!found || !isTwice(found.state)) return "";
  return found.steps === 2 ? ` after two steps, α₂ = ${found.state.next_step_exponent.toFixed(2)}` : " after the first step";
};

// A slide is 16 by 9.
const WIDTH = 1120;
const MARGIN = 28;

export function makeSaving() {
  for (const place of document.querySelectorAll(".export")) {
    const { view } = place.dataset;
    for (const kind of view === "network" ? ["SVG", "PNG"] : ["SVG", "PNG", "CSV"]) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: kind });
      button.setAttribute("aria-label", `Save ${VIEWS[view].title} as ${kind}`);
      button.addEventListener("click", () => {
        save(view, kind);
        place.closest("details").open = false;
      });
      place.append(button);
    }
  }
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.save[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
}

async function save(view, kind) {
  if (kind === "CSV") {
    download(new Blob([csv(view)], { type: "text/csv" }), `firststep-${view}.csv`);
    return;
  }
  const picture = slide(view);
  const blob = kind === "SVG" ? new Blob([svgText(picture)], { type: "image/svg+xml" }) : await pngOf(picture);
  download(blob, `firststep-${view}.${kind.toLowerCase()}`);
}

function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A view with its title, what it belongs to, and its legend.
function slide(view) {
  const { title, after = () => "", charts: names } = VIEWS[view];
  const { facts } = model.curves;
  const here = position().text;
  const style = getComputedStyle(document.documentElement);
  const [ink, soft, paper] = ["--ink", "--soft", "--paper"].map((name) => style.getPropertyValue(name).trim());
  const shown = names();
  const columns = Math.min(2, shown.length);
  const wide = (WIDTH - 2 * MARGIN - 16 * (columns - 1)) / columns;
  const high = shown.length > 2 ? 300 : 430;
  const host = document.createElement("div");
  host.className = "saving";
  document.body.append(host);
  const outer = element("svg", { xmlns: SVG, "font-family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif" });
  const back = element("rect", { width: WIDTH, fill: paper }, outer);
  text(outer, `${title}${after()}`, { x: MARGIN, y: 42, "font-size": 24, "font-weight": 600, fill: ink });
  text(outer, `${facts.title}`, { x: MARGIN, y: 66, "font-size": 14.5, fill: soft });
  text(outer, `${facts.sizes}, λ = ${facts.ridge}, α = ${here.alpha}, η = ${here.eta}`, { x: MARGIN, y: 87, "font-size": 14.5, fill: soft });
  let height = 100;
  shown.forEach((name, i) => {
    const svg = charts[name].twin(host, wide, high);
    const group = element("g", { transform: `translate(${MARGIN + (i % columns) * (wide + 16)} ${height + Math.floor(i / columns) * (high + 8)})` }, outer);
    group.append(...dressed(svg));
  });
  height += Math.ceil(shown.length / columns) * (high + 8) + 18;
  height = drawLegend(outer, host, view, height, soft);
  text(outer, "firststep", { x: WIDTH - MARGIN, y: 42, "font-size": 13, "text-anchor": "end", fill: soft });
  for (const [node, name, value] of [[back, "height", height], [outer, "height", height], [outer, "width", WIDTH], [outer, "viewBox", `0 0 ${WIDTH} ${height}`]]) node.setAttribute(name, value);
  host.remove();
  return outer;
}

function drawLegend(outer, host, view, top, soft) {
  let [x, y] = [MARGIN + 6, top];
  for (const [kind, words] of legends[view]?.items || []) {
    const wide = 34 + 7.4 * words.length + 22;
    if (x + wide > WIDTH - MARGIN && x > MARGIN + 6) [x, y] = [MARGIN + 6, y + 24];
    const svg = element("svg", { class: "chart" }, host);
    sample(kind, svg);
    const group = element("g", { transform: `translate(${x} ${y})` }, outer);
    group.append(...dressed(svg));
    text(outer, words, { x: x + 34, y: y + 11, "font-size": 14, fill: soft });
    x += wide;
  }
  return y + 34;
}

function csv(view) {
  const rows = [];
  const quoted = (cell) => (cell === null || cell === undefined ? "" : /[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : cell);
  const add = (...row) => rows.push(row.map(quoted).join(","));
  TABLES[view](add, position());
  return `${rows.join("\n")}\n`;
}

const TABLES = {
  errors(add) {
    const { curves, simulated, state } = model;
    const { test, train } = curves.errors.panels;
    add("step_exponent", "source", "test_error", "test_error_stderr", "train_error", "train_error_stderr", "missed", "spread");
    curves.exponents.forEach((alpha, i) => add(alpha, "unified", test.unified[i], "", train.unified[i], "", curves.positions[i].missed, curves.positions[i].spread));
    test.staircase.forEach((level, i) => add(level.from, `staircase from here to ${level.to}`, level.y, "", train.staircase[i].y));
    add("", "random_features", test.random_features, "", train.random_features);
    add("", "best_linear_predictor", test.best_linear);
    const points = sameProblem(simulated?.state, state) ? simulated.points : null;
    points?.exponents.forEach((alpha, i) => add(alpha, "simulation", points.test.mean[i], points.test.stderr[i], points.train.mean[i], points.train.stderr[i]));
  },
  learned(add, here) {
    const { learned } = model.curves;
    add("hermite_degree", "teacher_variance", "captured", "captured_without_step");
    learned.bars.names.forEach((name, i) => add(name, learned.bars.wanted[i], here.captured[i], learned.bars.without_step[i]));
    add();
    add("beta_x", "teacher", "learned", "without_step");
    learned.at.forEach((x, i) => add(x, learned.teacher[i], here.function[i], learned.without_step[i]));
  },
  second(add) {
    const { second, secondPoints } = model;
    if (!second || second.refusal) return;
    const { lines } = second.overlaps;
    add("next_step_exponent", "source", "test_error", "test_error_bar", "train_error", "train_error_bar", ...lines.map((line) => line.key));
    const { test, train } = second.panels;
    second.exponents.forEach((alpha, i) => add(alpha, "unified", test.errors[i], test.bar[i], train.errors[i], train.bar[i], ...lines.map((line) => line.values[i])));
    const points = secondPoints && sameButSecond(secondPoints.state, model.state) ? secondPoints.points : null;
    points?.exponents.forEach((alpha, i) => add(alpha, "simulation", points.test.mean[i], points.test.stderr[i], points.train.mean[i], points.train.stderr[i], ...lines.map((line) => points[line.key]?.mean[i])));
  },
  spectrum: (add) => addSpectrum(add, model.spectra.features),
  weights(add) {
    addSpectrum(add, model.spectra.weights);
    add();
    add("step_exponent", "alignment");
    model.curves.exponents.forEach((alpha, i) => add(alpha, model.curves.alignment.alignment[i]));
  },
};

function addSpectrum(add, found) {
  add("log10_eigenvalue", "density_per_decade");
  for (const piece of found?.pieces || []) piece.x.forEach((x, i) => add(x, piece.y[i]));
  add();
  add("outlier", "over_edge", "overlaps");
  found?.outliers.forEach((spike) => add(spike.text, spike.over_edge, spike.overlaps.map((entry) => `${entry.name} ${entry.value}`).join(" ")));
}
