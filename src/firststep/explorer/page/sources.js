// Where numbers come from: a server, or files written beforehand.

import { byId, client, indexOf, isStatic, isTwice, model, query, token } from "./model.js";

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
      if (content.refusal && content.status === 409) return null;
      // What cannot be computed is an answer too, so that the console stays empty.
      if (content.refusal) throw Object.assign(new Error(content.refusal), { refused: true });
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
export const asker = new Asker();

const live = {
  choices: () => asker.get("choices", "api/choices"),
  curves: (quality) => asker.get("curves", `api/curves?${query()}`, { "x-firststep-quality": quality }),
  finer: (quality) => asker.get("finer", `api/curves?${query()}`, { "x-firststep-quality": quality }),
  spectrum: (of, quality) => asker.get(`${of}-${quality}`, `api/spectrum/${of}?${query()}`, { "x-firststep-quality": quality }),
  critical: () => asker.get("critical", `api/critical?${query()}`),
  network: () => asker.get("network", `api/network?${query()}`),
  second: () => asker.get("second", `api/second?${query()}`),
  simulated: () => asker.get("simulated", `api/simulated?${query()}`),
  check: (values) => asker.get("check", `api/check?${new URLSearchParams(values)}`),
};

// One file for each preset and n, put into the page as scripts so that it opens without a server.
const parts = new Map();
function part(name) {
  if (!parts.has(name)) parts.set(name, unpacked(name));
  return parts.get(name);
}

async function unpacked(name) {
  const bytes = Uint8Array.from(atob(window.firststepData[name]), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function afterBoth(of, found) {
  const second = model.choices.next_exponents.indexOf(model.state.next_step_exponent);
  const spectrum = found.spectra[found.nearest[indexOf(model.state.step_exponent)]][found.nearest_next[second]];
  if (!spectrum) throw new Error("not computed for this page");
  return spectrum;
}

const files = {
  choices: () => part("choices"),
  curves: async () => {
    const { preset, n, ridge } = model.from;
    const found = await part(`curves-${preset}-${n}-${ridge}`);
    return { ...found, state: { ...found.state, step_exponent: model.state.step_exponent }, here: null };
  },
  spectrum: async (of) => {
    const { preset, n } = model.from;
    if (isTwice()) return afterBoth(of, await part(`both-${of}-${preset}-${n}`));
    const found = await part(`spectra-${of}-${preset}-${n}`);
    const place = found.nearest[indexOf(model.state.step_exponent)];
    if (place === null) throw new Error("not computed for this page");
    return found.spectra[place];
  },
  critical: () => part(`critical-${model.from.preset}-${model.from.n}`),
  network: () => part(`network-${model.from.preset}`),
  second: async () => {
    const { preset, n, ridge } = model.from;
    const found = await part(`second-${preset}-${n}`);
    return found.steps[found.nearest[indexOf(model.state.step_exponent)]][ridge];
  },
  finer: () => files.curves(),
  simulated: async () => ({ points: null, second: null }),
};
export const source = isStatic ? files : live;

export async function attempt(ask, refused = () => {}) {
  try {
    return await ask();
  } catch (error) {
    document.body.classList.remove("busy");
    if (error.refused) refused();
    const banner = byId("message");
    banner.textContent = error.message === "Failed to fetch" ? "The server does not answer. Is firststep explore still running?" : error.message;
    banner.hidden = false;
    return null;
  }
}

export async function order(method, address, content = undefined) {
  const headers = { "x-firststep-token": token, "x-firststep-client": client };
  if (content) headers["content-type"] = "application/json";
  const answer = await fetch(address, { method, headers, body: content && JSON.stringify(content) });
  const found = await answer.json();
  return { ok: answer.ok && !found.refusal, content: found.refusal ? { detail: found.refusal } : found };
}
