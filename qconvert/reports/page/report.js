"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.documentElement.classList.add("scripted");
  const SVG = "http://www.w3.org/2000/svg";
  // Larger networks are drawn in parts: the layout of 300 operators takes some 0.3 s, that of 3,000 exceeds a browser's stack.
  const PART = 300;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }
  function drawnElement(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  const short = (text, most) => (text.length <= most ? text : text.slice(0, most / 2 - 1) + "…" + text.slice(1 - most / 2));
  const figures = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const figure = (value) => (value === null ? "" : value !== 0 && Math.abs(value) < 0.01 ? value.toExponential(1) : figures.format(value));
  const said = (plot, values) => values.map(figure);
  const className = (text) => text.replace(/[^a-z]+/g, "-");

  // Powers of ten up to a number, at most five of them.
  function powers(most) {
    const last = Math.ceil(Math.log10(Math.max(most, 10))), step = Math.ceil(last / 4), found = [];
    for (let power = 0; power <= last; power += step) found.push(10 ** power);
    return () => found;
  }

  // ---- histograms -------------------------------------------------------------------------------------------------------------
  function histogram(place, title, bars, width) {
    const step = bars.counts.length ? (bars.high - bars.low) / bars.counts.length : 1;
    const xs = bars.counts.map((_, index) => bars.low + (index + 0.5) * step);
    const frame = element("figure", { class: "drawn" });
    const unit = bars.stored ? "stored integers" : "dequantized values";
    const used = bars.used ? `; ${bars.used} of the integers of the type occur` : "";
    frame.append(element("figcaption", {}, `${title}: how often, by ${unit}${used}`));
    place.append(frame);
    const ends = bars.ends || [];
    const lines = (plot) => {
      plot.ctx.save();
      plot.ctx.strokeStyle = color("--bad");
      for (const end of ends) {
        const x = plot.valToPos(end, "x", true);
        if (x < plot.bbox.left - 1 || x > plot.bbox.left + plot.bbox.width + 1) continue;
        plot.ctx.beginPath();
        plot.ctx.moveTo(x, plot.bbox.top);
        plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
        plot.ctx.stroke();
      }
      plot.ctx.restore();
    };
    const low = Math.min(bars.low, ...ends), high = Math.max(bars.high, ...ends);
    const axis = { stroke: color("--soft"), grid: { show: false }, ticks: { stroke: color("--line") }, font: "11px sans-serif" };
    const options = {
      width, height: 130, legend: { show: false }, cursor: { show: false }, hooks: { draw: [lines] },
      scales: { x: { time: false, range: [low === high ? low - 1 : low, low === high ? high + 1 : high] }, y: { distr: 3, log: 10, range: [0.5, Math.max(10, 1.5 * Math.max(...bars.counts))] } },
      axes: [{ ...axis, values: said }, { ...axis, size: 44, values: said, splits: powers(Math.max(...bars.counts)), ticks: { show: false } }],
      series: [{}, { fill: color("--bar"), stroke: color("--bar"), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [1, 40] }) }],
    };
    new uPlot(options, [xs, bars.counts.map((count) => count || null)], frame);
  }

  // ---- the plot of operators --------------------------------------------------------------------------------------------------
  const panes = [];
  function plotOfOperators(place) {
    const { names, differing, largest, verdicts } = data.plot;
    if (!largest.some((value) => value > 0)) {
      place.append(element("p", {}, `Nothing differs in any of the ${names.length} results compared.`));
      return;
    }
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") }, font: "11px sans-serif" };
    const words = element("p", { class: "hint" }, "Bars: share of elements that differ, in per cent; dots: largest difference. Point at an operator, click to go to it.");
    const options = {
      width: Math.max(320, place.clientWidth), height: 220, legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false } },
      scales: { x: { time: false, range: (plot, low, high) => [low - 0.6, high + 0.6] }, "%": { range: (plot, low, high) => [0, Math.max(high * 1.05, 1e-6)] }, steps: { range: (plot, low, high) => [0, Math.max(high * 1.1, 1e-6)] } },
      axes: [axis, { ...axis, scale: "%", label: "differ, %", size: 60, values: said, labelFont: "11px sans-serif" }, { ...axis, scale: "steps", side: 1, label: "largest", size: 60, values: said, grid: { show: false }, labelFont: "11px sans-serif" }],
      series: [{}, { scale: "%", fill: color("--bar"), stroke: color("--bar"), points: { show: false }, paths: uPlot.paths.bars({ size: [0.8, 24] }) },
        { scale: "steps", stroke: color("--bad"), width: 0, paths: () => null, points: { show: true, size: 5, fill: color("--bad") } }],
      hooks: { setCursor: [(plot) => {
        const index = plot.cursor.idx;
        if (index !== null && index !== undefined) words.textContent = `${names[index]}: ${differing[index]}% differ, by ${largest[index]} at most: ${verdicts[index]}`;
      }] },
    };
    const plot = new uPlot(options, [names.map((_, index) => index), differing, largest], place);
    plot.over.addEventListener("click", () => { if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) locate(names[plot.cursor.idx]); });
    place.append(words);
  }

  // ---- graphs -----------------------------------------------------------------------------------------------------------------
  class Pane {
    constructor(document_, index, place) {
      this.document = document_;
      this.index = index;
      this.part = 0;
      this.slice = 0;
      this.view = element("div", { class: "view" });
      this.parts = element("select", { "aria-label": "function" });
      document_.parts.forEach((part, number) => this.parts.append(element("option", { value: number }, part.name || "network")));
      this.parts.hidden = document_.parts.length < 2;
      this.slices = element("select", { "aria-label": "operators" });
      const whole = element("button", { type: "button" }, "whole"), begin = element("button", { type: "button" }, "beginning");
      const bar = element("div", { class: "bar" }, element("strong", {}, `${document_.title}: ${document_.name}`), this.parts, this.slices, begin, whole);
      place.append(element("div", { class: "pane" }, bar, this.view));
      this.parts.addEventListener("change", () => { this.part = Number(this.parts.value); this.slice = 0; this.list(); this.draw(); });
      this.slices.addEventListener("change", () => { this.slice = Number(this.slices.value); this.draw(); });
      whole.addEventListener("click", () => this.whole());
      begin.addEventListener("click", () => this.begin());
      this.list();
    }
    get graph() { return this.document.parts[this.part]; }
    list() {
      this.slices.replaceChildren();
      const count = this.graph.ops.length;
      for (let first = 0; first < Math.max(count, 1); first += PART) {
        this.slices.append(element("option", { value: first / PART }, `operators ${first + 1} to ${Math.min(first + PART, count)}`));
      }
      this.slices.hidden = count <= PART;
    }
    draw() {
      const { ops, tensors, inputs, outputs } = this.graph;
      const first = this.slice * PART, last = Math.min(first + PART, ops.length);
      const layout = new dagre.graphlib.Graph();
      layout.setGraph({ nodesep: 18, ranksep: 34, marginx: 12, marginy: 12 });
      layout.setDefaultEdgeLabel(() => ({}));
      const makers = new Map(), nodes = new Map();
      const add = (key, label, under, classes, op) => {
        const width = Math.max(64, 7.4 * Math.max(label.length, 0.82 * under.length) + 18);
        nodes.set(key, { label, under, classes, op });
        layout.setNode(key, { width, height: under ? 38 : 26 });
      };
      const border = (tensor, kind) => {
        const key = `${kind}${tensor}`;
        if (!nodes.has(key)) add(key, kind, short(tensors[tensor].name, 26), "border", -1);
        return key;
      };
      for (let index = first; index < last; index++) {
        const op = ops[index];
        add(`o${index}`, op.kind, op.out.length ? short(tensors[op.out[0]].name, 26) : "", `${op.runs} ${op.mark ? "mark-" + className(op.mark) : ""}`, index);
        for (const tensor of op.out) makers.set(tensor, `o${index}`);
      }
      for (let index = first; index < last; index++) {
        for (const tensor of new Set(ops[index].in)) {
          if (tensor < 0 || tensors[tensor].constant) continue;
          const maker = makers.get(tensor) || border(tensor, inputs.includes(tensor) ? "input" : "before");
          if (maker !== `o${index}`) layout.setEdge(maker, `o${index}`);
        }
      }
      for (const tensor of outputs) if (makers.has(tensor)) layout.setEdge(makers.get(tensor), border(tensor, "output"));
      dagre.layout(layout);
      const { width, height } = layout.graph();
      this.size = { width: Math.max(width || 1, 1), height: Math.max(height || 1, 1) };
      const svg = drawnElement("svg", { preserveAspectRatio: "xMidYMin meet", role: "img", "aria-label": `graph of the ${this.document.title}` });
      const arrow = drawnElement("marker", { id: `arrow${this.index}`, viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
      arrow.append(drawnElement("path", { d: "M0,0L8,4L0,8z", class: "arrow" }));
      const group = drawnElement("g", {});
      svg.append(arrow, group);
      for (const edge of layout.edges()) {
        const points = layout.edge(edge).points.map((point) => `${point.x.toFixed(1)},${point.y.toFixed(1)}`);
        group.append(drawnElement("path", { class: "edge", d: `M${points.join("L")}`, "marker-end": `url(#arrow${this.index})` }));
      }
      this.drawn = new Map();
      for (const [key, node] of nodes) {
        const { x, y, width: w, height: h } = layout.node(key);
        const made = drawnElement("g", { class: `node ${node.classes}`, tabindex: node.op >= 0 ? 0 : -1 });
        made.append(drawnElement("rect", { x: x - w / 2, y: y - h / 2, width: w, height: h }));
        made.append(drawnElement("text", { x, y: node.under ? y - 7 : y }, node.label));
        if (node.under) made.append(drawnElement("text", { x, y: y + 9, class: "under" }, node.under));
        if (node.op >= 0) {
          made.addEventListener("click", () => choose(this, node.op));
          made.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(this, node.op); });
          this.drawn.set(node.op, { made, x, y });
        }
        group.append(made);
      }
      this.view.replaceChildren(svg);
      this.svg = svg;
      this.box = { x: 0, y: 0, width: 1, height: 1 };
      this.moves(svg);
      this.begin();
    }
    // The view box is moved, not the picture scaled, so that text stays sharp.
    moves(svg) {
      const show = () => svg.setAttribute("viewBox", `${this.box.x} ${this.box.y} ${this.box.width} ${this.box.height}`);
      this.show = show;
      svg.addEventListener("wheel", (event) => {
        event.preventDefault();
        const rect = svg.getBoundingClientRect(), factor = Math.exp(event.deltaY * 0.0012);
        const fx = (event.clientX - rect.left) / rect.width, fy = (event.clientY - rect.top) / rect.height;
        this.box.x += this.box.width * fx * (1 - factor);
        this.box.y += this.box.height * fy * (1 - factor);
        this.box.width *= factor;
        this.box.height *= factor;
        show();
      }, { passive: false });
      let from = null;
      svg.addEventListener("pointerdown", (event) => { from = { x: event.clientX, y: event.clientY }; });
      addEventListener("pointermove", (event) => {
        if (!from) return;
        const rect = svg.getBoundingClientRect();
        this.box.x -= (event.clientX - from.x) * this.box.width / rect.width;
        this.box.y -= (event.clientY - from.y) * this.box.height / rect.height;
        from = { x: event.clientX, y: event.clientY };
        show();
      });
      addEventListener("pointerup", () => { from = null; });
    }
    ratio() {
      const rect = this.view.getBoundingClientRect();
      return (rect.height || 1) / (rect.width || 1);
    }
    // The beginning, at a size that can be read.
    begin() {
      const places = [...this.drawn.values()], top = Math.min(...places.map((place) => place.y), Infinity);
      const first = places.find((place) => place.y === top) || { x: 0, y: 0 };
      const width = Math.min(Math.max(this.size.width, 420), 760);
      const x = this.size.width <= width ? (this.size.width - width) / 2 : first.x - width / 2;
      this.box = { x, y: Math.max(first.y - 110, -10), width, height: width * this.ratio() };
      this.show();
    }
    whole() {
      const ratio = this.ratio(), width = Math.max(this.size.width, this.size.height / ratio, 420);
      this.box = { x: (this.size.width - width) / 2, y: (this.size.height - width * ratio) / 2, width, height: width * ratio };
      this.show();
    }
    select(op, move) {
      const slice = Math.floor(op / PART);
      if (slice !== this.slice) { this.slice = slice; this.slices.value = slice; this.draw(); }
      for (const { made } of this.drawn.values()) made.classList.remove("selected");
      const found = this.drawn.get(op);
      if (!found) return;
      found.made.classList.add("selected");
      if (move) { this.box.x = found.x - this.box.width / 2; this.box.y = found.y - this.box.height / 2; this.show(); }
    }
  }

  function choose(pane, index) {
    const place = document.querySelector(".chosen");
    place.replaceChildren();
    pane.select(index, false);
    const boxes = [describe(place, pane, index)];
    const names = new Set(pane.graph.ops[index].out.map((tensor) => pane.graph.tensors[tensor].name));
    for (const other of panes) {
      if (other === pane) continue;
      const twin = other.graph.ops.findIndex((op) => op.out.some((tensor) => names.has(other.graph.tensors[tensor].name)));
      if (twin >= 0) { other.select(twin, true); boxes.push(describe(place, other, twin)); }
    }
    // Behind all boxes, since each makes those before it narrower.
    for (const { box, tensors } of boxes) {
      for (const tensor of tensors) {
        if (tensor.bars) histogram(box, short(tensor.name, 90), tensor.bars, Math.max(220, Math.min(520, box.clientWidth - 40)));
      }
    }
  }

  function describe(place, pane, index) {
    const op = pane.graph.ops[index];
    const box = element("div", {}, element("h3", {}, `${pane.document.title}: ${op.kind}`));
    const facts = [op.source && `from ${op.source}`, `runs on: ${op.runs}`, op.mark && `found: ${op.mark}`, ...Object.entries(op.attributes).map(([key, value]) => `${key} = ${value}`)];
    box.append(element("p", { class: "hint" }, facts.filter(Boolean).join("; ")));
    const head = element("tr", {}, ...["", "tensor", "type", "shape", "scale", "zero point"].map((text) => element("th", {}, text)));
    const body = element("tbody", {});
    const rows = [...op.in.map((tensor) => ["in", tensor]), ...op.out.map((tensor) => ["out", tensor])].filter(([, tensor]) => tensor >= 0);
    for (const [side, number] of rows) {
      const tensor = pane.graph.tensors[number];
      const cells = [side, tensor.name, tensor.type, tensor.shape, tensor.scale || "", tensor.zero_point || ""];
      body.append(element("tr", {}, ...cells.map((text) => element("td", { title: text }, short(text, 90)))));
    }
    box.append(element("table", {}, element("thead", {}, head), body));
    place.append(box);
    return { box, tensors: rows.map(([, number]) => pane.graph.tensors[number]) };
  }

  // ---- finding ----------------------------------------------------------------------------------------------------------------
  // The operator that computes a tensor of this name, chosen in the graph, and its row in the tables.
  function locate(name) {
    for (const pane of panes) {
      const index = pane.graph.ops.findIndex((op) => op.out.some((tensor) => pane.graph.tensors[tensor].name === name));
      if (index >= 0) { pane.select(index, true); choose(pane, index); break; }
    }
    for (const row of document.querySelectorAll("tr.located")) row.classList.remove("located");
    const row = [...document.querySelectorAll("main tbody tr")].find((one) => [...one.cells].some((cell) => cell.textContent === name));
    if (!row) return;
    const folded = row.closest("details");
    if (folded) folded.open = true;
    row.classList.add("located");
    row.scrollIntoView({ block: "center" });
  }
  // Rows without the text are hidden; Enter chooses the first operator of a graph that has it.
  function search(field, hits) {
    const rows = [...document.querySelectorAll("section > .wide tbody tr, details .wide tbody tr")];
    field.addEventListener("input", () => {
      const text = field.value.trim().toLowerCase();
      let count = 0;
      for (const row of rows) {
        row.hidden = text !== "" && !row.textContent.toLowerCase().includes(text);
        count += text !== "" && !row.hidden;
      }
      for (const one of document.querySelectorAll("details")) if (text !== "" && one.querySelector("tbody tr:not([hidden])")) one.open = true;
      hits.textContent = text === "" ? "" : `${count} ${count === 1 ? "row" : "rows"}`;
    });
    field.addEventListener("keydown", (event) => {
      const text = field.value.trim().toLowerCase();
      if (event.key !== "Enter" || text === "") return;
      for (const pane of panes) {
        const index = pane.graph.ops.findIndex((op) => [op.kind, op.source || "", ...op.out.map((tensor) => pane.graph.tensors[tensor].name)].some((word) => word.toLowerCase().includes(text)));
        if (index >= 0) { pane.select(index, true); choose(pane, index); return; }
      }
    });
  }

  // ---- all of it --------------------------------------------------------------------------------------------------------------
  function start() {
    const plot = document.getElementById("plot");
    if (plot) plotOfOperators(plot);
    const graphs = document.getElementById("graphs");
    if (graphs) {
      const place = graphs.querySelector(".panes"), keys = graphs.querySelector(".keys");
      data.graphs.forEach((one, index) => panes.push(new Pane(one, index, place)));
      const found = new Set(data.graphs.flatMap((one) => one.parts.flatMap((part) => part.ops.map((op) => op.mark || op.runs))));
      for (const word of found) keys.append(element("span", { class: `key-${className(word)}` }, word));
      for (const pane of panes) pane.draw();
    }
    const seen = document.getElementById("histograms");
    if (seen) for (const one of data.histograms) histogram(seen.querySelector(".bars"), one.name, one.bars, 320);
    search(document.getElementById("search"), document.getElementById("hits"));
    document.documentElement.classList.add("drawn");
  }
  // What is folded is printed too; browsers that know ::details-content need only the style.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
  requestAnimationFrame(start);
})();
