// The page: reads the controls, asks for numbers, draws what comes back. No mathematics here.

import { choosePreset, makeControls, makeHistory, refuse, showControls } from "./controls.js";
import { alsoDrawn, makeCharts } from "./drawings.js";
import { change, refresh, stopPlaying, watchViews } from "./follow.js";
import { addGuess, makePresentation, makeTasks, makeTour } from "./lessons.js";
import { byId, gridAddress, indexOf, isNumeric, isStatic, isTwice, model, query, toast } from "./model.js";
import { drawInputs, makeInputs } from "./inputs.js";
import { makeNetwork } from "./network.js";
import { makeSaving } from "./save.js";
import { makeSecond } from "./second.js";
import { attempt, source } from "./sources.js";

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
    byId("copy-text").textContent = model.curves?.copy ? model.curves.copy[tab.dataset.copy] : "";
    byId("copy-text").setAttribute("aria-labelledby", tab.id);
  };
  byId("copy-open").addEventListener("click", async () => {
    if (!isStatic && model.curves) {
      // The position may have moved since the curves came.
      const found = await attempt(() => source.curves("draft"));
      if (found) model.curves.copy = found.copy;
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
    const shown = isStatic ? `#${gridAddress()}` : query() && `?${query()}`;
    const [page] = location.href.split(/[?#]/);
    copyText(`${page}${shown}`, "Link copied: it restores this view.");
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

// What each view means, when asked.
function makeExplanations() {
  for (const button of document.querySelectorAll(".ask")) {
    const text = byId(button.getAttribute("aria-controls"));
    button.addEventListener("click", () => {
      text.hidden = !text.hidden;
      button.setAttribute("aria-expanded", String(!text.hidden));
    });
  }
}

// From the page's address; what it says wrongly is named and left out.
async function readAddress() {
  const { choices } = model;
  const given = Object.fromEntries(new URLSearchParams(isStatic ? location.hash.slice(1) : location.search));
  if (isStatic) {
    const place = (name, length, other) => (given[name] in [...Array(length).keys()] ? Number(given[name]) : other);
    const preset = place("preset", choices.presets.length, 0);
    const grid = choices.grids[preset];
    model.from = { preset, n: place("n", grid.n_samples.length, choices.start.n), ridge: place("ridge", grid.ridge.length, choices.start.ridge) };
    model.state = { ...choices.defaults, ...choices.presets[preset].state, n_samples: grid.n_samples[model.from.n], ridge: grid.ridge[model.from.ridge] };
    const alpha = Number(given.step_exponent);
    if (given.step_exponent && choices.exponents.includes(alpha)) model.state.step_exponent = alpha;
    const later = Number(given.next_step_exponent);
    if (given.step_exponent && isTwice()) model.state.next_step_exponent = choices.next_exponents.includes(later) && given.next_step_exponent ? later : null;
    return [];
  }
  const known = Object.fromEntries(Object.entries(given).filter(([name]) => name in choices.defaults || name === "step_size"));
  const refused = Object.keys(known).length ? ((await source.check(new URLSearchParams(known)).catch(() => null))?.refused ?? []) : [];
  // A refusal that belongs to no single field spoils the whole.
  if (refused.some((entry) => !(entry.field in known))) for (const name of Object.keys(known)) delete known[name];
  for (const { field } of refused) delete known[field];
  model.state = { ...choices.defaults };
  for (const [name, value] of Object.entries(known)) model.state[name] = isNumeric(name) ? Number(value) : value;
  return refused;
}

async function start() {
  makeTheme();
  model.choices = await attempt(() => source.choices());
  if (!model.choices) return;
  const refused = await readAddress();
  if (matchMedia("(max-width: 1000px)").matches) byId("drawer").open = false;
  makeCharts((alpha, error) => {
    stopPlaying();
    if (!addGuess(alpha, error)) change({ step_exponent: model.choices.exponents[indexOf(alpha)], step_size: undefined });
  });
  makeNetwork();
  makeSecond(change);
  makeInputs(change);
  alsoDrawn.push((curves) => drawInputs(curves.inputs));
  makeControls();
  makeSaving();
  makeCopying();
  makeSymbols();
  makeExplanations();
  makeTour();
  makeTasks();
  makePresentation();
  showControls();
  makeHistory();
  watchViews();
  refresh(performance.now());
  if (refused.length) {
    byId("message").textContent = `This address says what cannot be shown: ${refused.map((entry) => entry.sentence).join("; ")}.`;
    byId("message").hidden = false;
  }
  document.body.dataset.ready = "true";
}

start();
