"use strict";

const CLASSES = [2, 3, 5, 10, 20, 50, 100, 200, 500, 1000];

// A prediction is three numbers: of the label, of one other class, and of each of the others, of which there are C - 2.
function prediction(classes, label, gathered) {
  const rest = 1 - label;
  const each = rest * (1 - gathered) / (classes - 1);
  return { label, other: each + rest * gathered, each, others: classes - 2 };
}

// What the other class does not have is shared by label and others as in `now`.
function withConfidence(now, confidence) {
  const left = (1 - confidence) / Math.max(1 - now.other, 1e-12);
  return { label: now.label * left, other: confidence, each: now.each * left, others: now.others };
}

function softmax(p, scale) {
  const top = Math.max(p.label, p.other, p.each);
  const [label, other, each] = [p.label, p.other, p.each].map((one) => Math.exp(scale * (one - top)));
  const sum = label + other + p.others * each;
  return { label: label / sum, other: other / sum, each: each / sum, log: Math.log(sum) + scale * top };
}

const total = (g, others) => Math.abs(g.label) + Math.abs(g.other) + others * Math.abs(g.each);

// The factor of cross-entropy's gradient, p - 1{y}, is all in which CE, GCE and MAE differ.
function powered(p, factor) {
  return total({ label: factor * (p.label - 1), other: factor * p.other, each: factor * p.each }, p.others);
}

function doubled(p, scale) {
  const q = softmax(p, scale);
  const mean = p.label * q.label + p.other * q.other + p.others * p.each * q.each;
  const balance = p.label - mean;
  const g = { label: p.label * (q.label - 1 + balance), other: p.other * (q.other + balance), each: p.each * (q.each + balance) };
  return { value: q.log / scale - p.label, gradient: total(g, p.others) };
}

const LOSSES = {
  ce: { name: "CE", formula: "−log p_y", of: (p) => ({ value: -Math.log(p.label), gradient: powered(p, 1) }) },
  gce: {
    name: "GCE", formula: "(1 − p_y^q) / q",
    of: (p, at) => ({ value: (1 - p.label ** at.power) / at.power, gradient: powered(p, p.label ** at.power) }),
  },
  dspt: { name: "DSPT", formula: "logsumexp(p) − p_y", of: (p) => doubled(p, 1) },
  mae: { name: "MAE", formula: "1 − p_y", of: (p) => ({ value: 1 - p.label, gradient: powered(p, p.label) }) },
  ls: { name: "L_s", formula: "(logsumexp(s p) − s p_y) / s", of: (p, at) => doubled(p, at.scale) },
};

function least(loss, at) {
  return loss.of({ label: 1, other: 0, each: 0, others: at.classes - 2 }, at).value;
}

// The sharp bound on DSPT's gradient: all of the rest in one class; a search in one dimension.
function greatest(classes) {
  let best = 0;
  for (let x = 0.3; x <= 0.55; x += 0.0005) best = Math.max(best, doubled({ label: x, other: 1 - x, each: 0, others: classes - 2 }, 1).gradient);
  return best;
}

if (typeof module !== "undefined") module.exports = { prediction, withConfidence, softmax, LOSSES, least, greatest };

if (typeof document !== "undefined") {
  const find = (id) => document.getElementById(id);
  const hidden = new Set();
  const shown = (value, digits = 3) => (Number.isFinite(value) ? value.toFixed(digits) : "∞");
  const SVG = "http://www.w3.org/2000/svg";

  const add = (parent, tag, attributes, text) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  const read = () => {
    const classes = CLASSES[Number(find("classes").value)];
    return {
      classes, label: Number(find("label").value), gathered: classes === 2 ? 1 : Number(find("gathered").value),
      scale: 10 ** Number(find("scale").value), power: Number(find("power").value), across: find("across").value,
    };
  };

  const box = { left: 44, right: 424, top: 12, bottom: 236 };

  const chart = (id, at, now, high, pick, bound) => {
    const svg = find(id);
    svg.replaceChildren();
    const byLabel = at.across === "label";
    const low = byLabel ? 0 : Math.min(now.other, 1 / at.classes);
    const x = (value) => box.left + (value - low) / (1 - low) * (box.right - box.left);
    const y = (value) => box.bottom - Math.min(value, high * 1.02) / high * (box.bottom - box.top);
    for (let i = 0; i <= 4; i += 1) {
      const value = high * i / 4;
      add(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) });
      add(svg, "text", { class: "tick", x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Math.round(100 * value) / 100));
      const step = low + (1 - low) * i / 4;
      add(svg, "text", { class: "tick", x: x(step), y: box.bottom + 16, "text-anchor": "middle" }, step.toFixed(2));
    }
    add(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
    add(svg, "text", { x: (box.left + box.right) / 2, y: box.bottom + 36, "text-anchor": "middle" }, byLabel ? "probability of the label" : "confidence in the other class");
    if (bound) add(svg, "line", { class: "bound", x1: box.left, x2: box.right, y1: y(bound), y2: y(bound) });
    const here = byLabel ? now.label : now.other;
    add(svg, "line", { class: "cursor", x1: x(here), x2: x(here), y1: box.top, y2: box.bottom });
    const names = [];
    for (const [key, loss] of Object.entries(LOSSES)) {
      if (hidden.has(key)) continue;
      const points = [];
      for (let i = 0; i <= 200; i += 1) {
        const value = Math.min(Math.max(low + (1 - low) * i / 200, 1e-6), 1 - 1e-6);
        const p = byLabel ? prediction(at.classes, value, at.gathered) : withConfidence(now, value);
        const height = pick(loss, p);
        if (height <= high * 1.02) points.push(`${x(value).toFixed(2)},${y(height).toFixed(2)}`);
      }
      add(svg, "polyline", { class: `curve ${key}`, points: points.join(" ") });
      const height = pick(loss, now);
      if (height <= high * 1.02) add(svg, "circle", { class: `dot ${key}`, cx: x(here), cy: y(height), r: 4.5 });
      names.push({ key, name: loss.name, y: y(Math.min(height, high)) });
    }
    // Names beside the dots, moved apart, on the side where there is room.
    names.sort((a, b) => a.y - b.y);
    for (let i = 1; i < names.length; i += 1) names[i].y = Math.max(names[i].y, names[i - 1].y + 13);
    for (let i = names.length - 1, floor = box.bottom; i >= 0; i -= 1, floor -= 13) names[i].y = Math.min(names[i].y, floor);
    const left = x(here) > (box.left + 2 * box.right) / 3;
    for (const one of names) add(svg, "text", { class: `name ${one.key}`, x: x(here) + (left ? -10 : 10), y: one.y + 4, "text-anchor": left ? "end" : "start" }, one.name);
  };

  const bars = (at, now) => {
    const svg = find("bars");
    svg.replaceChildren();
    const second = softmax(now, at.scale);
    const rows = [["label", "label"], ["other class", "other"], [`each of ${now.others} others`, "each"]];
    const body = find("shares").tBodies[0];
    body.replaceChildren();
    rows.slice(0, at.classes === 2 ? 2 : 3).forEach(([name, key], i) => {
      const y = 12 + 44 * i;
      add(svg, "text", { x: 124, y: y + 18, "text-anchor": "end" }, name);
      add(svg, "rect", { class: "first", x: 132, y, width: 290 * now[key], height: 12 });
      add(svg, "rect", { class: "second", x: 132, y: y + 15, width: 290 * second[key], height: 10 });
      const row = body.insertRow();
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = name;
      row.append(head);
      for (const value of [now[key], second[key]]) row.insertCell().textContent = value < 0.001 ? value.toExponential(1) : shown(value);
    });
    add(svg, "line", { class: "axis", x1: 132, x2: 132, y1: 6, y2: 142 });
  };

  const values = (at, now) => {
    for (const [key, loss] of Object.entries(LOSSES)) {
      const found = loss.of(now, at);
      const cells = find(`row-${key}`).cells;
      [found.value, found.value - least(loss, at), found.gradient].forEach((value, i) => { cells[i + 2].textContent = shown(value); });
    }
  };

  const sentence = (at, now) => {
    const [ce, dspt] = [LOSSES.ce.of(now, at).gradient, LOSSES.dspt.of(now, at).gradient];
    const none = Math.max(now.label, now.other) < 1.5 / at.classes && at.classes > 2;
    const sure = none ? "The prediction hardly prefers any class" : now.other > now.label ? `The prediction is ${Math.round(100 * now.other)} % sure of another class` : `The prediction agrees with the label, ${Math.round(100 * now.label)} %`;
    const times = ce / dspt;
    const less = times < 1.05 ? "no less" : `${times >= 10 ? Math.round(times) : times.toFixed(1)} times less`;
    find("sentence").textContent = `${sure}: cross-entropy pulls with ${shown(ce, 2)}, DSPT with ${shown(dspt, 2)}, ${less}.`;
  };

  const draw = () => {
    const at = read();
    const now = prediction(at.classes, at.label, at.gathered);
    const told = { classes: at.classes, label: shown(at.label), gathered: `${Math.round(100 * at.gathered)} %`, scale: at.scale.toPrecision(2), power: shown(at.power, 2) };
    for (const [id, text] of Object.entries(told)) {
      find(`${id}-out`).textContent = text;
      find(id).setAttribute("aria-valuetext", String(text));
    }
    find("gathered").disabled = at.classes === 2;
    chart("loss", at, now, 2, (loss, p) => loss.of(p, at).value - least(loss, at));
    chart("gradient", at, now, 2, (loss, p) => loss.of(p, at).gradient, hidden.has("dspt") ? 0 : greatest(at.classes));
    bars(at, now);
    values(at, now);
    sentence(at, now);
  };

  for (const [key, loss] of Object.entries(LOSSES)) {
    const row = find("values").tBodies[0].insertRow();
    row.id = `row-${key}`;
    const head = document.createElement("th");
    head.scope = "row";
    const label = document.createElement("label");
    const tick = document.createElement("input");
    tick.type = "checkbox";
    tick.checked = true;
    tick.addEventListener("change", () => { tick.checked ? hidden.delete(key) : hidden.add(key); draw(); });
    const swatch = document.createElementNS(SVG, "svg");
    swatch.setAttribute("viewBox", "0 0 44 12");
    swatch.setAttribute("aria-hidden", "true");
    add(swatch, "line", { class: `curve ${key}`, x1: 0, x2: 44, y1: 6, y2: 6 });
    label.append(tick, swatch, loss.name);
    head.append(label);
    row.append(head);
    row.insertCell().textContent = loss.formula;
    for (let i = 0; i < 3; i += 1) row.insertCell();
  }
  find("controls").addEventListener("input", draw);
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll("button[data-label]")) {
    button.addEventListener("click", () => {
      find("label").value = button.dataset.label;
      find("gathered").value = button.dataset.gathered;
      draw();
    });
  }
  draw();
}
