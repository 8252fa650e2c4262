// Charts with D3 (the global `d3`): every number, tick and label comes from the server; here they are only placed on
// the paper.

export const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, parent = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.append(node);
  return node;
}

export function text(parent, content, attributes) {
  const node = element("text", attributes, parent);
  node.textContent = content;
  return node;
}

const round = (value) => Math.round(value * 100) / 100;
const known = (value) => value !== null && value !== undefined;

// An axis with exactly these ticks.
const ticked = (axis, ticks) => axis.tickValues(ticks.map((tick) => tick.at)).tickFormat((_, i) => ticks[i].text).tickSizeOuter(0);

// Names that do not touch: every second or third tick where there are too many.
function thinned(ticks, scale, type) {
  const longest = Math.max(...ticks.map((tick) => tick.text.length), 1);
  const room = ticks.length > 1 ? Math.abs(scale(ticks[1].at) - scale(ticks[0].at)) : 1e9;
  const every = Math.max(1, Math.ceil((type * (6.6 * longest + 6)) / room));
  return ticks.filter((_, i) => i % every === 0);
}

// The axis, or one with room for these numbers too.
export function widened(axis, numbers) {
  const [low, high] = d3.extent([...axis.domain, ...numbers.filter(known)]);
  if (low === axis.domain[0] && high === axis.domain[1]) return axis;
  const scale = d3.scaleLinear().domain([low, high]).nice(5);
  const format = scale.tickFormat(5);
  return { ...axis, domain: scale.domain(), ticks: scale.ticks(5).map((at) => ({ at, text: format(at) })) };
}

// A drawing area with two axes.
export class Chart {
  // Size of letters, 1 on the page and more for an audience.
  static type = 1;

  // `height` gives the chart's height for its width; `onPick` is told where along x one presses or drags; `under` gives
  // the lines that stand beside the pointer, and where.
  constructor(holder, { label, height, onPick = null, under = null }) {
    Object.assign(this, { holder, label, onPick, under, tall: height, draw: null });
    this.svg = element("svg", { class: "chart", role: "img", "aria-label": label });
    holder.append(this.svg);
    // The room is read when it changes and not at every drawing, which would lay out the page each time.
    this.room = holder.clientWidth;
    this.watch = new ResizeObserver(() => {
      this.room = holder.clientWidth;
      this.redraw(true);
    });
    this.watch.observe(holder);
    if (onPick) this.listen();
    if (under) this.point();
  }

  listen() {
    this.svg.classList.add("pickable");
    let active = false;
    const pick = (event) => this.x && this.onPick(this.along(event), this.up(event));
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      active = true;
      this.svg.setPointerCapture(event.pointerId);
      pick(event);
    });
    this.svg.addEventListener("pointermove", (event) => active && pick(event));
    for (const end of ["pointerup", "pointercancel"]) this.svg.addEventListener(end, () => (active = false));
  }

  along(event) {
    return this.x.copy().clamp(true).invert(event.clientX - this.svg.getBoundingClientRect().left);
  }

  up(event) {
    return this.y.copy().clamp(true).invert(event.clientY - this.svg.getBoundingClientRect().top);
  }

  // Values under the pointer.
  point() {
    const tip = Object.assign(document.createElement("div"), { className: "under", hidden: true });
    tip.setAttribute("aria-hidden", "true");
    this.holder.append(tip);
    const hide = () => {
      tip.hidden = true;
      this.cross?.remove();
      this.cross = null;
    };
    this.svg.addEventListener("pointermove", (event) => {
      const found = this.x && this.draw && this.under(this.along(event), this.up(event));
      if (!found) return hide();
      this.cross?.remove();
      const at = this.px(found.at);
      this.cross = element("line", { x1: at, x2: at, y1: this.top, y2: this.bottom, class: "cross" }, this.svg);
      tip.replaceChildren(...found.lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
      tip.hidden = false;
      const left = at > this.width / 2 ? at - tip.offsetWidth - 10 : at + 10;
      tip.style.left = `${Math.max(2, Math.min(left, this.width - tip.offsetWidth - 2))}px`;
      tip.style.top = `${Math.max(this.top, Math.min(this.y(found.height ?? this.y.domain()[1]) - 12, this.bottom - tip.offsetHeight))}px`;
    });
    for (const end of ["pointerleave", "pointerdown"]) this.svg.addEventListener(end, hide);
  }

  // What `moving` draws goes on top and is drawn every time; `draw` only when something in `key` is another object
  // than before.
  show(draw, description, { key = null, moving = null } = {}) {
    const kept = key !== null && this.key?.length === key.length && key.every((part, i) => part === this.key[i]);
    Object.assign(this, { draw, description, key, moving, stale: this.stale || !kept });
    this.redraw(kept);
  }

  redraw(kept = false) {
    if (!this.draw) return;
    this.svg.setAttribute("aria-label", `${this.label}. ${this.description || ""}`);
    // One that is not shown is drawn when it is.
    if (!this.room) return;
    const width = Math.max(220, Math.floor(this.room));
    const height = Math.round(this.tall(width));
    if (!kept || this.stale || width !== this.width || height !== this.height) this.paint(width, height);
    else this.move();
  }

  paint(width, height) {
    this.stale = false;
    Object.assign(this, { width, height });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren();
    this.cross = null;
    this.draw(this);
    this.marks = this.moving && this.plot && [this.plot, this.over].map((group) => element("g", {}, group));
    this.move();
  }

  move() {
    if (!this.moving || !this.marks) return;
    const layers = [this.plot, this.over];
    for (const group of this.marks) group.replaceChildren();
    [this.plot, this.over] = this.marks;
    this.moving(this);
    [this.plot, this.over] = layers;
  }

  // The same in another size, inside `host`, for saving.
  twin(host, width, height) {
    const twin = Object.assign(Object.create(Chart.prototype), { draw: this.draw, moving: this.moving });
    twin.svg = element("svg", { class: "chart" }, host);
    twin.paint(width, height);
    return twin.svg;
  }

  frame(x, y, { top = 14, bottom = 40, left = null, right = 18 } = {}) {
    const longest = Math.max(...y.ticks.map((tick) => tick.text.length), 1);
    const type = Chart.type;
    this.left = left ?? type * (26 + 7.2 * longest);
    this.right = this.width - right * type;
    this.top = top * type;
    this.bottom = this.height - bottom * type;
    this.x = d3.scaleLinear().domain(x.domain).range([this.left, this.right]);
    this.y = d3.scaleLinear().domain(y.domain).range([this.bottom, this.top]);
    const across = ticked(d3.axisLeft(this.y), y.ticks).tickSize(this.left - this.right).tickPadding(7);
    const along = ticked(d3.axisBottom(this.x), thinned(x.ticks, this.x, type)).tickSizeInner(4).tickPadding(5);
    const svg = d3.select(this.svg);
    svg.append("g").attr("class", "grid").attr("transform", `translate(${this.left} 0)`).call(across);
    const axis = svg.append("g").attr("class", "along").attr("transform", `translate(0 ${this.bottom})`).call(along);
    text(axis.node(), x.label, { x: (this.left + this.right) / 2, y: this.height - 5 - this.bottom, class: "axis" });
    const middle = (this.top + this.bottom) / 2;
    text(this.svg, y.label, { transform: `translate(${12 * type} ${middle}) rotate(-90)`, "text-anchor": "middle", class: "axis" });
    const id = `clip-${(Chart.count = (Chart.count || 0) + 1)}`;
    const clip = element("clipPath", { id }, element("defs", {}, this.svg));
    element("rect", { x: this.left, y: this.top - 8, width: this.right - this.left, height: this.bottom - this.top + 9 }, clip);
    this.plot = element("g", { "clip-path": `url(#${id})` }, this.svg);
    this.over = element("g", {}, this.svg);
  }

  px(value) {
    return round(this.x(value));
  }

  py(value) {
    return round(this.y(value));
  }

  path(xs, ys, kind, close = null) {
    const shape = close === null ? d3.line() : d3.area().y0(this.py(close));
    const drawn = shape.defined((x, i) => known(x) && known(ys[i])).x((x) => this.px(x));
    const height = (_, i) => this.py(ys[i]);
    return element("path", { d: (close === null ? drawn.y(height) : drawn.y1(height))(xs) || "", class: kind }, this.plot);
  }

  // Between two curves.
  band(xs, lows, highs, kind) {
    const area = d3.area().defined((x, i) => known(lows[i]) && known(highs[i])).x((x) => this.px(x));
    return element("path", { d: area.y0((_, i) => this.py(lows[i])).y1((_, i) => this.py(highs[i]))(xs) || "", class: kind }, this.plot);
  }

  levels(steps, kind) {
    const group = element("g", { class: kind }, this.plot);
    for (const step of steps) {
      if (!known(step.y)) continue;
      const at = this.py(step.y);
      element("line", { x1: this.px(step.from), x2: this.px(step.to), y1: at, y2: at }, group);
    }
    return group;
  }

  across(y, kind) {
    if (!known(y)) return;
    element("line", { x1: this.left, x2: this.right, y1: this.py(y), y2: this.py(y), class: kind }, this.plot);
  }

  upright(x, kind, label = "", row = 0) {
    const at = this.px(x);
    element("line", { x1: at, x2: at, y1: this.top, y2: this.bottom, class: kind }, this.plot);
    if (label) text(this.over, label, { x: at + 3, y: this.top + 2 + 13 * row, class: `name ${kind}` });
  }

  points(xs, ys, errors, kind) {
    const group = element("g", { class: kind }, this.plot);
    xs.forEach((x, i) => {
      if (!known(ys[i])) return;
      const at = this.px(x);
      if (known(errors?.[i])) {
        const [low, high] = [this.py(ys[i] - errors[i]), this.py(ys[i] + errors[i])];
        element("line", { x1: at, x2: at, y1: low, y2: high }, group);
        for (const end of [low, high]) element("line", { x1: at - 3, x2: at + 3, y1: end, y2: end }, group);
      }
      element("circle", { cx: at, cy: this.py(ys[i]), r: 3.4 }, group);
    });
  }

  here(x, y) {
    const at = this.px(x);
    element("line", { x1: at, x2: at, y1: this.top - 6, y2: this.bottom, class: "here" }, this.plot);
    if (known(y)) element("circle", { cx: at, cy: this.py(y), r: 5.5, class: "here-dot" }, this.over);
  }

  bars(edges, heights, kind) {
    const group = element("g", { class: kind }, this.plot);
    const floor = this.py(0);
    heights.forEach((height, i) => {
      if (!height) return;
      const [from, to, at] = [this.px(edges[i]), this.px(edges[i + 1]), this.py(height)];
      element("rect", { x: from, y: at, width: Math.max(0.5, to - from - 0.6), height: Math.max(0, floor - at) }, group);
    });
  }

  // Words in place of a picture.
  say(sentence) {
    this.show((paper) => {
      paper.left = 10;
      paper.x = null;
      paper.plot = null;
      paper.over = element("g", {}, paper.svg);
      const words = sentence.match(/.{1,46}(\s|$)/g) || [];
      words.slice(0, 7).forEach((line, i) => paper.note(paper.width / 2, 60 + 18 * i, line.trim(), { "text-anchor": "middle", class: "name" }));
    }, sentence);
  }

  note(x, y, content, attributes = {}) {
    return text(this.over, content, { x, y, ...attributes });
  }
}

// A copy that looks the same outside the page: what the style sheet says is written into it.
const COPIED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linecap", "stroke-linejoin", "paint-order", "font-size", "font-weight", "font-style", "text-anchor", "opacity"];

export function dressed(svg) {
  const copy = svg.cloneNode(true);
  const copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((node, k) => {
    const style = getComputedStyle(node);
    for (const property of COPIED) {
      const value = style.getPropertyValue(property);
      if (value) copies[k].setAttribute(property, value);
    }
    for (const name of ["class", "font-family"]) copies[k].removeAttribute(name);
  });
  return [...copy.childNodes];
}

export function svgText(node) {
  return new XMLSerializer().serializeToString(node);
}

export function pngOf(node, scale = 2) {
  return new Promise((resolve, reject) => {
    const address = URL.createObjectURL(new Blob([svgText(node)], { type: "image/svg+xml" }));
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = node.getAttribute("width") * scale;
      canvas.height = node.getAttribute("height") * scale;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      URL.revokeObjectURL(address);
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png");
    };
    image.onerror = () => reject(new Error("no picture"));
    image.src = address;
  });
}
