"use strict";
(() => {
const REVIEW = document.documentElement.dataset.mode === "review";
const PAGE = 60;
const GROUPS = 30;
// How thumbnails lie on a sheet, as report.py puts them there: ten in a row, each with a margin that is never shown.
const ACROSS = 10, SIDE = 124, MARGIN = 2, CELL = SIDE + 2 * MARGIN;
const POLL = 2000;
const RETRY = 1500;
const $ = id => document.getElementById(id);

// Names come from strangers: they become text nodes and attributes, never markup.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return element;
}
const key = text => make("kbd", {}, text);
const number = value => Math.round(value).toLocaleString("en");
const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;
const percent = share => share > 0 && share < 0.005 ? "<\u00a01\u00a0%" : share < 1 && share > 0.995 ? ">\u00a099\u00a0%" : `${Math.round(100 * share)}\u00a0%`;

// Colours: what the system says, until somebody chooses.
const theme = {
  button: $("theme"),
  system: matchMedia("(prefers-color-scheme: dark)"),
  isDark() { return (document.documentElement.dataset.theme || (this.system.matches ? "dark" : "light")) === "dark"; },
  show() { this.button.textContent = this.isDark() ? "Light" : "Dark"; this.button.setAttribute("aria-label", `${this.isDark() ? "Light" : "Dark"} colours`); },
  start() {
    try { const kept = localStorage.getItem("dspt-theme"); if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept; } catch { /* not allowed to keep anything */ }
    this.show();
    this.system.addEventListener("change", () => this.show());
    this.button.addEventListener("click", () => {
      const chosen = this.isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = chosen;
      try { localStorage.setItem("dspt-theme", chosen); } catch { /* not allowed to keep anything */ }
      this.show();
    });
  },
};
theme.start();

let data, images, suspects, classes, findings, given, count;
// Whether anything is known of the labels: if not, nothing is proposed, and no label has a probability.
let canTell;
let sheetRules, sheetsKnown = new Set();
let lowered = null, numbers = null, unsettled = null;
// The number of the image of each row that is shown anywhere.
let imageOf = null;
// The rows of the list (positions among the suspects) in the order shown, the page, and where the cursor is in it.
let listed = [], page = 0, cursor = 0, anchor = 0;
let selected = new Set();
let positionOf = null;

function say(text) {
  $("status").textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { $("status").textContent = ""; }, 6000);
}

// ---- pictures

function showPicture(element, image) {
  const place = images.place[image];
  if (place >= 0) {
    const sheet = Math.floor(place / (ACROSS * ACROSS)), at = place % (ACROSS * ACROSS);
    if (!sheetsKnown.has(sheet)) {
      // A rule for each sheet, so that its address, which may be the picture itself, is there once.
      sheetsKnown.add(sheet);
      const address = new URL(data.sheets[sheet], document.baseURI).href;
      sheetRules.insertRule(`.sheet-${sheet} { background-image: url("${address}"); }`);
    }
    element.classList.add(`sheet-${sheet}`);
    const shift = position => `${100 * (position * CELL + MARGIN) / (ACROSS * CELL - SIDE)}%`;
    element.style.backgroundPosition = `${shift(at % ACROSS)} ${shift(Math.floor(at / ACROSS))}`;
  } else if (REVIEW && data.pictures) {
    element.classList.add("single");
    element.style.backgroundImage = `url("/thumb/${images.row[image]}")`;
  } else {
    element.classList.add("none");
    element.textContent = "no picture";
  }
  return element;
}
const nameOf = image => images.name[image];
const hasPictures = () => data.pictures || data.sheets.length > 0;

function thumb(image, label) {
  return showPicture(make("span", { class: "thumb", role: "img", "aria-label": label, title: nameOf(image) }), image);
}

// ---- the overview

function showOverview() {
  const worst = data.worst;
  $("worst").hidden = worst.length === 0;
  const showWorst = all => {
    $("worst-list").replaceChildren(...(all ? worst : worst.slice(0, 10)).map(([label, rate, total]) => {
      const bar = make("i");
      bar.style.setProperty("--part", rate);
      return make("li", {}, make("button", { type: "button", title: "Show its suspects", onclick: () => choosePair(label, -1) },
        make("span", { class: "name", dir: "auto" }, classes[label]),
        make("span", { class: "rate" }, percent(rate), make("span", { class: "of" }, ` of ${number(total)}`)),
        make("span", { class: "bar", "aria-hidden": "true" }, bar)));
    }));
  };
  showWorst(false);
  $("worst-more").hidden = worst.length <= 10;
  $("worst-more").textContent = `Show all ${number(worst.length)} classes with wrong labels`;
  $("worst-more").addEventListener("click", () => { showWorst(true); $("worst-more").hidden = true; });

  const shown = data.confusion.classes, counts = data.confusion.counts;
  $("confusion").hidden = shown.length < 2;
  const most = Math.max(...counts.flat(), 1e-9);
  const head = make("tr", {}, make("th", { class: "corner", scope: "col" }, "given ↓ true →"),
    ...shown.map(label => make("th", { scope: "col", title: classes[label] }, make("span", { dir: "auto" }, classes[label]))));
  const body = shown.map((from, i) => make("tr", {}, make("th", { scope: "row", title: classes[from] }, make("span", { dir: "auto" }, classes[from])),
    ...shown.map((to, j) => {
      if (i === j) return make("td", { class: "same" });
      const value = counts[i][j];
      if (value < 0.05) return make("td");
      const cell = make("button", {
        type: "button", "aria-pressed": "false", "data-pair": `${from}-${to}`,
        title: `given ${classes[from]}, in truth ${classes[to]}: about ${value < 1 ? value.toFixed(1) : number(value)}`,
        "aria-label": `given ${classes[from]}, in truth ${classes[to]}: about ${value < 1 ? value.toFixed(1) : number(value)}`,
        onclick: () => choosePair(from, to),
      }, value >= 0.5 ? number(value) : "");
      // By the root, or a few large numbers would leave the others without a colour.
      cell.style.setProperty("--part", Math.sqrt(value / most));
      return make("td", {}, cell);
    })));
  $("heat").style.setProperty("--cell", shown.length <= 10 ? "2.45rem" : shown.length <= 14 ? "2.2rem" : "1.85rem");
  $("heat").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  const scroll = $("heat").parentElement;
  const more = () => scroll.toggleAttribute("data-more", scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 2);
  scroll.addEventListener("scroll", more);
  new ResizeObserver(more).observe(scroll);
  if (shown.length && shown.length < classes.length)
    $("confusion-hint").textContent += ` The ${shown.length} classes most often confused, of ${number(classes.length)}.`;
  $("overview").hidden = $("worst").hidden && $("confusion").hidden;
}

function choosePair(from, to) {
  const set = (select, value) => { select.value = [...select.options].some(one => one.value === String(value)) ? String(value) : ""; };
  $("search").value = "";
  // The figures are of what is left to decide about.
  $("state").value = REVIEW && data.summary.decided ? "open" : "all";
  set($("given"), from);
  set($("proposed"), to);
  if (!$("given").value || (to >= 0 && !$("proposed").value)) {
    say(to >= 0 ? `No single label given as ${classes[from]} is surely ${classes[to]}; the number is the sum of many small doubts.`
      : `No single label given as ${classes[from]} is called wrong.`);
    $("filters").reset();
  }
  openTab("suspects");
  refresh();
  $("tabs").scrollIntoView({ block: "start" });
}

// ---- tabs

function tabs() {
  const groups = findings.groups;
  const issues = Object.entries(findings.issues);
  const parts = images.split.length > 0 || new Set(findings.unusable.map(row => row[2])).size > 1;
  const list = [
    ["suspects", !canTell ? "To look at" : data.summary.budget === null ? "Wrong labels" : "Worth a look", count, null, ""],
    ["conflicts", "Conflicting duplicates", groups.filter(g => g.differ).length, { groups: groups.filter(g => g.differ) },
      "The same image more than once, with different labels. At least one of the labels is wrong."],
    ["leaks", "Leaks to test", groups.filter(g => g.leak).length, { groups: groups.filter(g => g.leak) },
      "The same image in what is learnt from and in what is tested on. Figures of accuracy are better than they should be."],
    ["duplicates", "Duplicates", groups.length, { groups },
      "The same image more than once: byte for byte, or nearly the same to look at."],
    ["outliers", "Fit no class", findings.outliers.length, { tiles: findings.outliers },
      "Images that lie far from every class, the farthest first. They may belong to none of the classes."],
    ["issues", "Image problems", new Set(issues.flatMap(one => one[1])).size, { issues }, "Images that are hard to learn from."],
    ["unusable", "Unusable files", findings.unusable.length,
      parts ? { head: ["File", "Reason", "Part"], rows: findings.unusable } : { head: ["File", "Reason"], rows: findings.unusable.map(row => row.slice(0, 2)) },
      "Files and rows that could not be used; they are not among the labels counted above."],
    ["empty", "Empty folders", findings.empty.length, { head: ["Folder"], rows: findings.empty.map(name => [name]) },
      "Class folders without images; they are none of the classes above."],
    ["alike", "Classes alike", findings.inseparable.length,
      { head: ["One class", "Other class", "Why", "Could be either"], rows: findings.inseparable.map(([a, b, share, byImages]) => byImages
        ? [classes[a], classes[b], "The images do not tell them apart; labels within the pair cannot be judged", percent(share)]
        : [classes[a], classes[b], "Their names are one word", ""]) },
      "Pairs of classes that perhaps are one class."],
  ];
  return list.filter(one => one[0] === "suspects" || one[2] > 0);
}

let openTab = () => {};
function showTabs() {
  const list = tabs();
  const buttons = list.map(([id, title, total]) => make("button", {
    type: "button", role: "tab", id: `tab-${id}`, "aria-selected": "false", "aria-controls": id === "suspects" ? "panel-suspects" : "panel-other",
    tabindex: "-1", onclick: () => openTab(id),
  }, title, make("span", { class: "number" }, number(total))));
  openTab = id => {
    list.forEach((one, i) => {
      buttons[i].setAttribute("aria-selected", String(one[0] === id));
      buttons[i].tabIndex = one[0] === id ? 0 : -1;
    });
    const [, title, , content, hint] = list.find(one => one[0] === id);
    $("panel-suspects").hidden = id !== "suspects";
    $("panel-other").hidden = id === "suspects";
    current.tab = id;
    if (id !== "suspects") {
      $("panel-other").setAttribute("aria-labelledby", `tab-${id}`);
      $("other-hint").textContent = hint;
      showOther(content, title);
    } else mark();
    showDock();
  };
  $("tabs").replaceChildren(...buttons);
  $("tabs").addEventListener("keydown", event => {
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = (to + buttons.length) % buttons.length;
    openTab(list[next][0]);
    buttons[next].focus();
  });
}
const current = { tab: "suspects", other: null };

function showOther(content) {
  const draw = (all, each, wrap, at = 0) => {
    const pages = Math.ceil(all.length / each);
    $("other-list").replaceChildren(wrap(all.slice(at * each, (at + 1) * each)));
    pager($("pager-other"), at, pages, next => { draw(all, each, wrap, next); $("tabs").scrollIntoView({ block: "start" }); });
    current.other = () => draw(all, each, wrap, at);
  };
  const tiles = some => make("ul", { class: "tiles" }, ...some.map(tile));
  $("other-chips").hidden = !content.issues;
  if (content.groups) draw(content.groups, GROUPS, some => make("div", { class: "groups" }, ...some.map(group)));
  else if (content.tiles) draw(content.tiles, PAGE, tiles);
  else if (content.issues) {
    const titles = { tiny: "Tiny", odd_size: "Unusual size", odd_aspect_ratio: "Unusual shape", blank: "Blank", dark: "Dark", light: "Light", blurry: "Blurry" };
    const chips = content.issues.map(([issue, some], i) => make("button", {
      type: "button", "aria-pressed": String(i === 0),
      onclick: event => {
        chips.forEach(one => one.setAttribute("aria-pressed", String(one === event.currentTarget)));
        draw(some, PAGE, tiles);
      },
    }, `${titles[issue] || issue} (${number(some.length)})`));
    $("other-chips").replaceChildren(...chips);
    draw(content.issues[0][1], PAGE, tiles);
  } else {
    const rows = content.rows;
    draw(rows, 200, some => make("table", { class: "facts" },
      make("thead", {}, make("tr", {}, ...content.head.map(one => make("th", { scope: "col" }, one)))),
      make("tbody", {}, ...some.map(row => make("tr", {}, ...row.map((one, k) => make("td", { dir: "auto", "data-head": content.head[k] }, one)))))));
  }
}

function group(one) {
  const words = [one.identical ? "Identical files" : "Nearly the same picture"];
  const marks = [one.differ && "labels differ", one.leak && "in train and test"].filter(Boolean).join(", ");
  return make("div", { class: "group" },
    make("p", {}, words.join(""), marks ? ": " : "", marks ? make("b", {}, marks) : ""),
    make("ul", { class: "tiles" }, ...one.images.map(tile)), REVIEW && one.differ ? forAll(one.images) : "");
}

// One label for all samples that are one image, but for those that are removed.
function forAll(some) {
  const left = some.filter(image => (decisionOf(images.row[image]) || [])[0] !== "remove");
  const give = label => send({ action: "relabel", rows: left.map(image => images.row[image]), labels: left.map(() => label) });
  const labels = [...new Set(some.map(image => images.label[image]))];
  const has = label => left.length > 0 && left.every(image => { const decision = decisionOf(images.row[image]); return decision && decision[1] === label; });
  return make("div", { class: "for-all", role: "group", "aria-label": "Label for all of them" }, make("span", {}, "Label for all:"),
    ...labels.map(label => make("button", {
      type: "button", class: "small", dir: "auto", disabled: left.length === 0, "aria-pressed": String(has(label)),
      "data-row": images.row[some[0]], "data-what": `all-${label}`, onclick: () => give(label),
    }, classes[label])),
    make("button", {
      type: "button", class: "small", disabled: left.length === 0, "aria-label": "Another class for all of them",
      "data-row": images.row[some[0]], "data-what": "all", onclick: () => choose(left, give),
    }, "Class …"));
}

function tile(image) {
  const decision = decisionOf(images.row[image]);
  const removed = decision && decision[0] === "remove";
  return make("li", { class: "tile", "data-decided": decision ? decision[0] : null, "data-saving": overlay.has(images.row[image]), "data-row": images.row[image] },
    hasPictures() ? thumb(image, nameOf(image)) : "",
    make("span", { class: "class", dir: "auto", title: classes[images.label[image]] }, classes[images.label[image]]),
    make("span", { class: "path", dir: "auto" }, nameOf(image) + (images.split.length ? ` (${images.split[image]})` : "")),
    decision ? make("span", { class: "verdict", dir: "auto" }, verdict(image, decision)) : "",
    REVIEW ? make("div", { class: "small-buttons" },
      make("button", {
        type: "button", class: "small", "aria-label": `Choose the class of ${nameOf(image)}`, title: "c chooses a class, k keeps the label",
        "data-row": images.row[image], "data-what": "other", onclick: () => decideTile(image, "other"),
      }, "Class …"),
      make("button", {
        type: "button", class: "small", "aria-pressed": String(Boolean(removed)), "aria-label": `Remove ${nameOf(image)}`, title: "x removes",
        "data-row": images.row[image], "data-what": "remove", onclick: () => decideTile(image, "remove"),
      }, removed ? "Removed" : "Remove")) : "");
}

function decideTile(image, what) {
  const row = images.row[image], decision = decisionOf(row);
  if (what === "other") choose([image], label => send({ action: "relabel", rows: [row], labels: [label] }));
  else if (what === "keep") send({ action: "keep", rows: [row], labels: [images.label[image]] });
  else send({ action: decision && decision[0] === "remove" ? "restore" : "remove", rows: [row], labels: [-1] });
}

// What has the focus is made anew with the others of its list, and has it again.
function redrawOther() {
  const { row, what } = document.activeElement ? document.activeElement.dataset : {};
  current.other();
  if (what && !document.querySelector("dialog[open]")) {
    const again = $("other-list").querySelector(`[data-row="${row}"][data-what="${what}"]`);
    if (again) again.focus({ preventScroll: true });
  }
}

// ---- the list of suspects

function start() {
  images = data.images; suspects = data.suspects; classes = data.classes; findings = data.findings;
  // After these come labels that are on the list for what was decided alone; only who asks for decided ones sees them.
  count = data.summary.listed;
  canTell = data.summary.can_tell;
  images.place = images.place || new Array(images.row.length).fill(-1);
  data.sheets = data.sheets || [];
  given = suspects.image.map(image => images.label[image]);
  positionOf = new Map(suspects.image.map((image, i) => [images.row[image], i]));
  imageOf = new Map(images.row.map((row, image) => [row, image]));
  sheetRules = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheetRules];
  document.body.classList.toggle("no-pictures", !hasPictures());
  const most = suspects.examples.reduce((found, both) => Math.max(found, both[0].length, both[1].length), 0);
  $("cards").style.setProperty("--examples", Math.max(most, 3));
  options($("given"), given.slice(0, count));
  options($("proposed"), suspects.proposed.slice(0, count));
  if (!canTell) withoutProposals();
  showOverview();
  showTabs();
  $("state-field").hidden = !REVIEW;
  $("filters").hidden = suspects.image.length === 0;
  const pictured = suspects.image.filter(image => images.place[image] >= 0).length;
  $("limit").hidden = REVIEW || !hasPictures() || ((!canTell || suspects.examples.length === count) && pictured === count);
  $("limit").textContent = `To keep this page small, ${number(pictured)} of these labels have a picture${canTell ? ` and ${number(suspects.examples.length)} have examples beside it` : ""}; "dspt review" shows all.`;
  $("loading").hidden = true;
  refresh(true);
  openTab("suspects");
  showKeys();
}

function withoutProposals() {
  $("proposed").closest("label").hidden = true;
  for (const one of [...$("order").options]) if (["close", "pair", "proposed"].includes(one.value)) one.remove();
  $("order").options[0].textContent = "As they come";
  $("state").querySelector("[value=against]").remove();
  $("cards").setAttribute("aria-label", "Labels to look at");
  for (const button of document.querySelectorAll("[data-do=take]")) button.remove();
}

function options(select, labels) {
  const counts = new Map();
  for (const label of labels) if (label !== null) counts.set(label, (counts.get(label) || 0) + 1);
  const found = [...counts].sort((a, b) => a[0] - b[0]);
  select.replaceChildren(make("option", { value: "" }, "Any"),
    ...found.map(([label, total]) => make("option", { value: label }, `${classes[label]} (${number(total)})`)));
}

function filtered() {
  const text = $("search").value.trim().toLowerCase();
  const from = $("given").value, to = $("proposed").value, state = REVIEW ? $("state").value : "all";
  if (text && !lowered) lowered = suspects.image.map(image => nameOf(image).toLowerCase());
  const found = [];
  for (let i = 0; i < reach(); i++) {
    if (from !== "" && given[i] !== +from) continue;
    if (to !== "" && suspects.proposed[i] !== +to) continue;
    if (text && !lowered[i].includes(text)) continue;
    if (state !== "all") {
      const decision = decisionOf(rowOf(i));
      if (state === "open" ? decision : !decision) continue;
      if (state === "against" && agrees(i, decision) !== false) continue;
    }
    found.push(i);
  }
  return found;
}

// A label that is worth a look may be right for all that: then what is proposed is the best of the other classes.
const likelyRight = i => canTell && suspects.quality[i] >= suspects.p[i];
const called = i => likelyRight(i) ? "or else" : "proposed";
// Whether the class that was decided is the likeliest one, as it was when that was decided; null where nobody can tell.
function agrees(i, decision) {
  if (decision.length > 2) return decision[2];
  if (decision[0] === "remove" || i === undefined || !canTell) return null;
  return decision[1] === (likelyRight(i) ? given[i] : suspects.proposed[i]);
}

const reach = () => REVIEW && ["done", "against"].includes($("state").value) ? suspects.image.length : count;

function ordered(found) {
  const order = $("order").value;
  if (order === "sure" || order === "close") {
    // Those that are decided come last: after a refit they are the surest, and nobody has to look at them again.
    const open = [], done = [];
    for (const i of order === "sure" ? found : found.reverse()) (REVIEW && decisionOf(rowOf(i)) ? done : open).push(i);
    return [...open, ...done];
  }
  const by = (...keys) => found.sort((a, b) => {
    for (const one of keys) { const x = one(a), y = one(b); if (x < y) return -1; if (x > y) return 1; }
    return a - b;
  });
  if (order === "given") return by(i => given[i], i => suspects.proposed[i]);
  if (order === "proposed") return by(i => suspects.proposed[i], i => given[i]);
  if (order === "name") return by(i => nameOf(suspects.image[i]));
  const pairs = pairCounts();
  return by(i => -(pairs.get(pairOf(i)) || 0), i => pairOf(i));
}
const rowOf = i => images.row[suspects.image[i]];
const pairOf = i => given[i] * classes.length + suspects.proposed[i];
function pairCounts() {
  if (!numbers) {
    numbers = new Map();
    for (let i = 0; i < count; i++) numbers.set(pairOf(i), (numbers.get(pairOf(i)) || 0) + 1);
  }
  return numbers;
}

// How many of each pair of classes are not decided yet.
function openCounts() {
  if (!unsettled) {
    unsettled = new Map();
    for (let i = 0; i < count; i++) if (!REVIEW || !decisionOf(rowOf(i))) unsettled.set(pairOf(i), (unsettled.get(pairOf(i)) || 0) + 1);
  }
  return unsettled;
}

function refresh(first = false) {
  listed = ordered(filtered());
  page = cursor = anchor = 0;
  if (!first) selected.clear();
  else if (REVIEW) {
    const open = listed.findIndex(i => !decisionOf(rowOf(i)));
    if (open > 0) { page = Math.floor(open / PAGE); cursor = anchor = open; }
  }
  document.querySelectorAll(".heat button").forEach(one =>
    one.setAttribute("aria-pressed", String(one.dataset.pair === `${$("given").value}-${$("proposed").value}`)));
  draw();
}

const pages = () => Math.max(1, Math.ceil(listed.length / PAGE));
const onPage = () => listed.slice(page * PAGE, (page + 1) * PAGE);

function draw() {
  $("cards").replaceChildren(...onPage().map((i, k) => card(i, page * PAGE + k)));
  const all = reach();
  $("nothing").hidden = listed.length > 0 || all === 0;
  $("count").textContent = all === 0 ? (data.summary.budget === null ? "No label is called wrong." : "None is left to look at.") :
    listed.length === all ? plural(all, "label", "labels") : `${number(listed.length)} of ${plural(all, "label", "labels")}`;
  $("select-shown").hidden = listed.length === 0;
  $("select-shown").replaceChildren(`Select all ${number(listed.length)} `, key("a"));
  for (const id of ["pager-top", "pager-bottom"]) pager($(id), page, pages(), turn);
  mark();
  showDock();
}

function pager(nav, at, total, go) {
  if (total < 2) { nav.replaceChildren(); return; }
  nav.replaceChildren(
    make("button", { type: "button", disabled: at === 0, "aria-label": "Previous page", onclick: () => go(at - 1) }, "‹ Previous"),
    make("span", {}, `Page ${number(at + 1)} of ${number(total)}`),
    make("button", { type: "button", disabled: at === total - 1, "aria-label": "Next page", onclick: () => go(at + 1) }, "Next ›"));
}

function turn(to, focus = true) {
  page = Math.min(Math.max(to, 0), pages() - 1);
  cursor = anchor = page * PAGE;
  draw();
  if (focus) focusCard();
}

function card(i, place) {
  const image = suspects.image[i], from = given[i], to = suspects.proposed[i];
  const both = suspects.examples[i];
  const side = (kind, what, label, p, some) => make("div", { class: `side ${kind}` },
    make("div", { class: "line" }, make("span", { class: "what" }, what), p === null ? "" : make("span", { class: "p" }, percent(p)), " ",
      make("span", { class: "class", dir: "auto", title: classes[label] }, classes[label])),
    hasPictures() && some && some.length ? make("div", { class: "strip" },
      ...some.map(one => thumb(one, `surely ${classes[label]}: ${nameOf(one)}`))) : "");
  const box = make("input", { type: "checkbox", "aria-label": `Select ${nameOf(image)}` });
  box.checked = selected.has(i);
  box.addEventListener("click", event => { event.stopPropagation(); toggle(place, event.shiftKey); });
  let picture = "";
  if (hasPictures()) {
    picture = make("div", { class: "picture" }, REVIEW
      ? showPicture(make("button", { type: "button", class: "thumb", "aria-label": `Enlarge ${nameOf(image)}`, onclick: () => { moveTo(place); zoom(); } }), image)
      : thumb(image, nameOf(image)));
  }
  const element = make("li", { class: "card", tabindex: "-1", "data-row": rowOf(i), "data-place": place, "aria-label": `${nameOf(image)}: given ${classes[from]}${canTell ? `, ${called(i)} ${classes[to]}` : ""}` },
    make("div", { class: "file" }, make("label", {}, box),
      make("span", { class: "path", dir: "auto", title: nameOf(image) }, nameOf(image)),
      images.split.length ? make("span", { class: "split" }, images.split[image]) : ""),
    picture,
    make("div", { class: "sides" },
      side("given", "given", from, suspects.quality[i], both && both[0]),
      canTell ? side("proposed", called(i), to, suspects.p[i], both && both[1]) : ""),
    make("div", { class: "foot" },
      canTell && classes.length > 2 && suspects.runner[i] !== from && suspects.q[i] >= 0.005
        ? make("p", { class: "runner", dir: "auto" }, `or ${classes[suspects.runner[i]]}, ${percent(suspects.q[i])}`) : "",
      REVIEW ? make("p", { class: "verdict", dir: "auto" }) : "",
      canTell ? make("button", { type: "button", class: "like quiet", title: "All with the same given and proposed label that are not decided", onclick: event => { event.stopPropagation(); moveTo(place); selectLike(i); } },
        make("span"), " ", key("l")) : ""),
    REVIEW ? make("div", { class: "buttons", role: "group", "aria-label": "Decision" },
      ...[["keep", "Keep", `Keep ${classes[from]}`, "k"], ["take", "Take", `Take ${classes[to]}`, "p"], ["other", "Other", "Choose another class", "c"], ["remove", "Remove", "Remove the image from the set", "x"]]
        .filter(([what]) => canTell || what !== "take")
        .map(([what, text, title, letter]) => make("button", {
          type: "button", "data-what": what, title, "aria-label": title,
          onclick: event => { event.stopPropagation(); moveTo(place); act(what, [i]); },
        }, text, key(letter)))) : "");
  element.addEventListener("click", event => {
    if (event.target.closest("button, label, a")) return;
    if (event.shiftKey || event.ctrlKey || event.metaKey) { event.preventDefault(); toggle(place, event.shiftKey); }
    else { selected.clear(); selected.add(i); anchor = place; moveTo(place); mark(); showDock(); }
  });
  element.addEventListener("mousedown", event => { if (event.shiftKey) event.preventDefault(); });
  return element;
}

function verdict(image, decision) {
  const saving = overlay.has(images.row[image]) ? " · saving …" : "";
  if (!decision) return saving && "Taken back · saving …";
  if (decision[0] === "keep") return `Kept as ${classes[images.label[image]]}${saving}`;
  if (decision[0] === "remove") return `Removed${saving}`;
  return `Now ${classes[decision[1]]}${saving}`;
}

// What may change without a new list: the cursor, the selection, decisions.
function mark() {
  for (const element of $("cards").children) {
    const place = +element.dataset.place, i = listed[place], here = place === cursor;
    element.classList.toggle("current", here);
    element.tabIndex = here ? 0 : -1;
    if (here) element.setAttribute("aria-current", "true"); else element.removeAttribute("aria-current");
    element.classList.toggle("selected", selected.has(i));
    element.querySelector("input").checked = selected.has(i);
    const decision = decisionOf(rowOf(i)), like = element.querySelector(".like");
    if (like) {
      const open = openCounts().get(pairOf(i)) || 0;
      like.hidden = open < (decision ? 1 : 2);
      like.firstChild.textContent = `Select ${number(open)} like this`;
    }
    if (!REVIEW) continue;
    if (decision) element.dataset.decided = decision[0]; else delete element.dataset.decided;
    element.toggleAttribute("data-saving", overlay.has(rowOf(i)));
    element.querySelector(".verdict").textContent = verdict(suspects.image[i], decision);
    const done = !decision ? "" : decision[0] === "relabel" ? (decision[1] === suspects.proposed[i] ? "take" : "other") : decision[0];
    for (const button of element.querySelectorAll("[data-what]")) button.setAttribute("aria-pressed", String(button.dataset.what === done));
  }
  if ($("zoom").open) showZoom();
}

function focusCard(scroll = true) {
  const element = $("cards").querySelector(`[data-place="${cursor}"]`);
  if (!element) return;
  if (!document.querySelector("dialog[open]")) element.focus({ preventScroll: true });
  if (scroll) element.scrollIntoView({ block: "nearest" });
}

function moveTo(place) {
  if (!listed.length) return;
  const to = Math.min(Math.max(place, 0), listed.length - 1);
  if (Math.floor(to / PAGE) !== page) { page = Math.floor(to / PAGE); cursor = to; draw(); }
  else { cursor = to; mark(); }
  focusCard();
}

function columns() {
  const [a, ...rest] = $("cards").children;
  if (!a) return 1;
  const more = rest.findIndex(one => one.offsetTop > a.offsetTop);
  return more < 0 ? rest.length + 1 : more + 1;
}

function step(by, extend) {
  if (extend && !selected.size) anchor = cursor;
  moveTo(cursor + by);
  if (extend) range(anchor, cursor); else anchor = cursor;
}

function range(a, b) {
  selected = new Set(listed.slice(Math.min(a, b), Math.max(a, b) + 1));
  mark();
  showDock();
}

function toggle(place, toHere) {
  if (toHere) { moveTo(place); range(anchor, place); return; }
  const i = listed[place];
  if (selected.has(i)) selected.delete(i); else selected.add(i);
  anchor = place;
  moveTo(place);
  showDock();
}

function selectShown() {
  selected = new Set(listed);
  mark();
  showDock();
  say(`${plural(selected.size, "label", "labels")} selected`);
}

function selectLike(i) {
  const pair = pairOf(i);
  selected = new Set();
  for (let k = 0; k < count; k++) if (pairOf(k) === pair && !decisionOf(rowOf(k))) selected.add(k);
  if (!selected.size) say("All of them are decided.");
  else say(`${plural(selected.size, "label", "labels")} given as ${classes[given[i]]} and proposed as ${classes[suspects.proposed[i]]} selected`);
  mark();
  showDock();
}

function clearSelection() { selected.clear(); mark(); showDock(); }

function showDock() {
  $("actions").hidden = selected.size === 0 || current.tab !== "suspects";
  $("selected-count").textContent = selected.size ? `${number(selected.size)} selected` : "";
  $("dock").hidden = !REVIEW && $("actions").hidden;
  if (!REVIEW) return;
  let decided = 0, agreed = 0, judged = 0, settled = 0, everywhere = 0;
  for (const [row, decision] of everyDecision()) {
    const i = positionOf.get(row);
    const same = agrees(i, decision);
    if (same !== null) { judged++; agreed += Number(same); }
    const doubt = images.doubt[imageOf.get(row)] || 0;
    everywhere += doubt;
    if (i === undefined || i >= count) continue;
    decided++;
    settled += doubt;
  }
  $("progress-line").hidden = count === 0;
  $("progress").max = Math.max(count, 1);
  $("progress").value = decided;
  const words = [decided === count ? `All ${number(count)} decided` : `${number(decided)} of ${number(count)} decided`];
  // On a phone there is room for the most important ones alone.
  const add = (text, kind) => words.push(make("span", { class: kind }, kind === "less" ? text : ` · ${text}`));
  if (data.summary.expected !== null) {
    const here = number(Math.max(0, data.summary.expected - settled)), left = number(Math.max(0, data.summary.expected_everywhere - everywhere));
    add(`about ${here} wrong left here, ${left} in the whole set`, "more");
    add(`about ${left} wrong left`, "less");
  }
  if (judged) add(`you agreed with ${number(agreed)} of ${number(judged)} (${percent(agreed / judged)})`, "more");
  $("progress-words").replaceChildren(...words);
}

async function copyNames() {
  const text = [...selected].sort((a, b) => a - b).map(i => nameOf(suspects.image[i])).join("\n") + "\n";
  try { await navigator.clipboard.writeText(text); } catch {
    const area = make("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(`${plural(selected.size, "name", "names")} copied`);
}

// ---- decisions

const remote = new Map();
let overlay = new Map();
const queue = [];
// Why the last attempt to save failed; "" if it did not.
let failed = "";
let last = 0, generation = 0, sending = false, polling = false, stopped = false;
// Whether the list was made again since it was loaded: it is loaded anew when all that was decided is saved.
let outdated = false;

const decisionOf = row => overlay.has(row) ? overlay.get(row) : remote.get(row);
function* everyDecision() {
  for (const [row, decision] of remote) if (!overlay.has(row)) yield [row, decision];
  for (const [row, decision] of overlay) if (decision) yield [row, decision];
}

function act(what, chosen) {
  const which = chosen || (selected.size ? [...selected].sort((a, b) => a - b) : listed.length ? [listed[cursor]] : []);
  if (!which.length) return;
  if (what === "other") { choose(which.map(i => suspects.image[i]), label => decide(which, "relabel", which.map(() => label))); return; }
  if (what === "take" && !canTell) { say("Nothing is proposed; c chooses a class."); return; }
  const labels = which.map(i => what === "keep" ? given[i] : what === "take" ? suspects.proposed[i] : -1);
  decide(which, { keep: "keep", take: "relabel", remove: "remove" }[what], labels);
}

function decide(which, action, labels) {
  send({ action, rows: which.map(rowOf), labels });
  const several = which.length > 1;
  selected.clear();
  if (several) say(`${plural(which.length, "label", "labels")} decided; u takes it back`);
  // On a card that is decided the next key would decide it again.
  if (decisionOf(rowOf(listed[cursor]))) {
    const next = listed.findIndex((i, place) => place > cursor && !decisionOf(rowOf(i)));
    if (next >= 0) moveTo(next);
    else { mark(); if (!several) say("This was the last one of the list."); }
    anchor = cursor;
  } else mark();
  showDock();
}

function send(entry) {
  queue.push({ ...entry, request: [...crypto.getRandomValues(new Uint8Array(12))].map(byte => byte.toString(16).padStart(2, "0")).join("") });
  cover();
  if (failed) notSaved();
  work();
}

// Who gives a label the class that it has keeps it.
const becomes = (one, row, k) => one.action === "relabel" && one.labels[k] === images.label[imageOf.get(row)] ? "keep" : one.action;

function cover() {
  overlay = new Map();
  // What stood before a removal is not known here: until the answer comes, it is nothing.
  for (const one of queue) if (one.rows) one.rows.forEach((row, k) => overlay.set(row, one.action === "restore" ? undefined : [becomes(one, row, k), one.labels[k]]));
  document.documentElement.dataset.unsaved = queue.length;
  shown();
}

function shown() {
  unsettled = null;
  if (current.tab === "suspects") mark(); else if (current.other) redrawOther();
  showDock();
}

async function ask(path, body) {
  const options = { credentials: "same-origin", cache: "no-store", redirect: "error" };
  if (body) Object.assign(options, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const answer = await fetch(path, options);
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return found;
  const error = new Error(found.error || `The review answered ${answer.status}.`);
  error.status = answer.status;
  throw error;
}

function trouble(text) {
  $("trouble").hidden = !text;
  if ($("trouble").textContent !== text) $("trouble").textContent = text;
}

function stop(text) { stopped = true; trouble(text); }

function taken(changed) {
  for (const [row, action, label, agreed] of changed) if (action) remote.set(row, [action, label, agreed]); else remote.delete(row);
}

// One request at a time, in order: what is decided later is never saved before what was decided earlier.
async function work() {
  if (sending || stopped) return;
  sending = true;
  while (queue.length && !stopped) {
    const one = queue[0];
    try {
      const { rows, labels, action, request } = one;
      const answer = rows ? await ask("/decide", { rows, labels, action, request, generation }) : await ask("/undo", { request, generation });
      taken(answer.changed);
      queue.shift();
      failed = "";
      trouble("");
      cover();
      if (!rows) undone(answer);
    } catch (error) {
      if (error.status === 409 && await renewed()) continue;
      if (error.status >= 400 && error.status < 500 && ![403, 409].includes(error.status)) { queue.shift(); cover(); trouble(`Not saved: ${error.message}`); continue; }
      if (stopped) break;
      failed = error.status === 403 ? refused(error) : error.status && error.status !== 409 ? error.message : "The review does not answer; is it still running?";
      notSaved();
      await new Promise(resolve => setTimeout(resolve, RETRY));
    }
  }
  sending = false;
  if (outdated && !queue.length) location.reload();
}

// A list that was made again has the same rows and classes: what was decided on the old one is sent for the new one.
async function renewed() {
  try {
    const now = await ask(`/decisions?since=${last}`);
    if (now.about !== data.about) { stop(`Another report is reviewed at this address now. ${unsaved()} Open its review again and decide there.`); return false; }
    generation = now.generation;
    outdated = true;
    return true;
  } catch { return false; }
}

// A review that was started anew has another token; this browser has it too once its address was opened here.
const refused = error => `${error.message} If it was started anew, open its new address in this browser; this page then goes on.`;
const notSaved = () => trouble(`${unsaved()} ${failed} Trying again …`);
const unsaved = () => {
  const rows = queue.reduce((total, one) => total + (one.rows ? one.rows.length : 1), 0);
  return rows ? `Not saved yet: ${plural(rows, "decision", "decisions")}.` : "";
};

function undone(answer) {
  if (answer.batch === null) { say("There is nothing to undo."); return; }
  const rows = answer.changed.map(one => one[0]);
  say(`Taken back: ${plural(rows.length, "decision", "decisions")}`);
  const place = listed.findIndex(i => rowOf(i) === rows[0]);
  if (place >= 0 && current.tab === "suspects") moveTo(place);
}

async function poll() {
  if (!polling && !sending && !queue.length && !stopped) {
    polling = true;
    try {
      const answer = await ask(`/decisions?since=${last}`);
      if (answer.generation !== generation && !queue.length && !sending) { location.reload(); return; }
      // What was decided here meanwhile is newer than this answer; it comes again with the next one.
      if (!queue.length && !sending) {
        last = answer.last;
        taken(answer.changed);
        if (answer.changed.length) shown();
        trouble("");
      }
    } catch (error) {
      trouble(error.status === 403 ? refused(error) : error.status ? error.message : "The review does not answer; is it still running? What was decided so far is saved.");
    }
    polling = false;
  }
  if (!stopped) { clearTimeout(poll.timer); poll.timer = setTimeout(poll, POLL); }
}

async function refit() {
  $("refit").disabled = true;
  $("refit").textContent = "Working …";
  say("Learning from what you decided; the list is made again.");
  try {
    generation = (await ask("/refit", { generation })).generation;
    outdated = true;
    if (!queue.length && !sending) location.reload();
  } catch (error) {
    if (error.status === 409 && await renewed()) { if (!queue.length && !sending) location.reload(); return; }
    trouble(error.status ? error.message : "The review does not answer; is it still running?");
    $("refit").disabled = false;
    $("refit").textContent = "Refit";
  }
}

// ---- choosing a class

const chooser = { images: [], then: null, found: [], at: 0 };
function choose(some, then) {
  Object.assign(chooser, { images: some, then });
  $("chooser-title").textContent = some.length === 1 ? `Which class is ${nameOf(some[0])}?` : `Which class are these ${number(some.length)}?`;
  $("chooser-input").value = "";
  showChoices();
  $("chooser").showModal();
  $("chooser-input").focus();
}

function showChoices() {
  const text = $("chooser-input").value.trim().toLowerCase();
  const alone = chooser.images.length === 1, now = new Set(chooser.images.map(image => images.label[image]));
  const one = alone && canTell ? positionOf.get(images.row[chooser.images[0]]) : undefined;
  const first = one === undefined ? (alone ? [...now] : []) : [suspects.other[one], suspects.proposed[one], given[one]].filter(c => c !== null);
  const rank = c => { const name = classes[c].toLowerCase(); return !text ? (first.includes(c) ? first.indexOf(c) : 9) : name === text ? 0 : name.startsWith(text) ? 1 : 2; };
  chooser.found = classes.map((_, c) => c).filter(c => classes[c].toLowerCase().includes(text)).sort((a, b) => rank(a) - rank(b) || a - b).slice(0, 200);
  // Who asks for another class does not mean the one that is given.
  chooser.at = text ? 0 : Math.max(0, chooser.found.findIndex(c => !now.has(c)));
  const note = c => !alone ? "" : now.has(c) ? "given" : one === undefined ? "" : c === suspects.proposed[one] ? `${likelyRight(one) ? "next best" : "proposed"}, ${percent(suspects.p[one])}` : c === suspects.runner[one] ? `runner-up, ${percent(suspects.q[one])}` : "";
  $("chooser-list").replaceChildren(...chooser.found.map((c, k) => make("li", { role: "option", id: `choice-${k}`, onclick: () => { chooser.at = k; choice(); } },
    make("span", { dir: "auto" }, classes[c]), note(c) ? make("small", {}, note(c)) : "")));
  if (!chooser.found.length) $("chooser-list").replaceChildren(make("li", { "aria-disabled": "true" }, "No class has this in its name."));
  markChoice();
}

function markChoice() {
  [...$("chooser-list").children].forEach((item, k) => {
    if (!chooser.found.length) return;
    item.setAttribute("aria-selected", String(k === chooser.at));
    if (k === chooser.at) item.scrollIntoView({ block: "nearest" });
  });
  if (chooser.found.length) $("chooser-input").setAttribute("aria-activedescendant", `choice-${chooser.at}`);
  else $("chooser-input").removeAttribute("aria-activedescendant");
}

function choice() {
  const label = chooser.found[chooser.at];
  if (label === undefined) return;
  $("chooser").close();
  chooser.then(label);
}

// ---- a larger picture

function zoom() {
  if (!listed.length) return;
  showZoom();
  if (!$("zoom").open) $("zoom").showModal();
}

function showZoom() {
  const i = listed[cursor], image = suspects.image[i];
  $("zoom-title").textContent = nameOf(image);
  const address = `/image/${images.row[image]}`;
  if ($("zoom-picture").getAttribute("src") !== address) $("zoom-picture").setAttribute("src", address);
  $("zoom-picture").alt = nameOf(image);
  $("zoom-words").replaceChildren("Given ", make("b", { class: "given", dir: "auto" }, classes[given[i]]),
    ...(canTell ? [`, ${called(i)} `, make("b", { class: "proposed", dir: "auto" }, classes[suspects.proposed[i]]), ` (${percent(suspects.p[i])})`] : []),
    `. ${verdict(image, decisionOf(rowOf(i)))}`);
}

// ---- keys

function showKeys() {
  const list = [
    [["←", "→", "↑", "↓"], "go to another label"],
    [["Home", "End"], "first or last of the list"],
    [["[", "]"], "previous or next page"],
    [["Space"], "select, or select no longer"],
    [["Shift", "→"], "select several in a row; a click with Shift does too"],
    [["a"], "select all that are shown"],
    ...(canTell ? [[["l"], "select all with the same given and proposed label"]] : []),
    [["Esc"], "clear the selection"],
    [["/"], "find a file"],
    [["?"], "this list"],
  ];
  if (REVIEW) list.unshift(
    [["k"], "keep the given label"],
    ...(canTell ? [[["p", "Enter"], "take the proposed label"]] : []),
    [["c"], "choose another class"],
    [["x", "r"], "remove the image from the set"],
    [["u"], "undo the last decision"],
    [["z"], "enlarge the picture"],
  );
  $("keys").replaceChildren(...list.flatMap(([keys, text]) => [make("dt", {}, ...keys.map(key)), make("dd", {}, text)]));
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !data || event.isComposing) return;
  const dialog = document.querySelector("dialog[open]");
  if (dialog && dialog.id !== "zoom") return;
  const typing = event.target.closest && event.target.closest("input:not([type=checkbox]), select, textarea");
  if (typing) {
    if (event.key === "Escape") { typing.blur(); focusCard(); }
    else if (event.key === "Enter" && typing.id === "search") { event.preventDefault(); focusCard(); }
    return;
  }
  const button = event.target.closest && event.target.closest("button, a, input");
  if (button && (event.key === "Enter" || event.key === " ")) return;
  const onTile = REVIEW && !dialog && current.tab !== "suspects" && event.target.closest && event.target.closest(".tile");
  const what = { k: "keep", c: "other", x: "remove", r: "remove" }[event.key.toLowerCase()];
  if (onTile && what && !event.repeat) { event.preventDefault(); decideTile(imageOf.get(+onTile.dataset.row), what); return; }
  if (current.tab !== "suspects" && !["?", "u"].includes(event.key)) return;
  const letter = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const review = {
    k: () => act("keep"), p: () => act("take"), Enter: () => act("take"), c: () => act("other"), x: () => act("remove"), r: () => act("remove"),
    u: () => send({}), z: () => $("zoom").open ? $("zoom").close() : zoom(),
  };
  const any = {
    ArrowRight: () => step(1, event.shiftKey), ArrowLeft: () => step(-1, event.shiftKey),
    ArrowDown: () => step(columns(), event.shiftKey), ArrowUp: () => step(-columns(), event.shiftKey),
    Home: () => step(-listed.length, event.shiftKey), End: () => step(listed.length, event.shiftKey),
    "[": () => page > 0 && turn(page - 1), "]": () => page < pages() - 1 && turn(page + 1),
    " ": () => listed.length && toggle(cursor, false), a: selectShown, l: () => canTell && listed.length && selectLike(listed[cursor]),
    Escape: clearSelection, "/": () => { $("search").focus(); $("search").select(); }, "?": () => $("help").showModal(),
  };
  if (dialog && !["k", "p", "Enter", "x", "r", "c", "u", "z", "ArrowRight", "ArrowLeft"].includes(letter)) return;
  const run = (REVIEW && review[letter]) || any[letter];
  if (!run || (event.repeat && REVIEW && review[letter])) return;
  event.preventDefault();
  if (dialog && letter === "c") dialog.close();
  run();
}

document.addEventListener("keydown", pressed);
$("filters").addEventListener("submit", event => event.preventDefault());
$("filters").addEventListener("reset", () => setTimeout(() => refresh(), 0));
for (const id of ["given", "proposed", "order", "state"]) $(id).addEventListener("change", () => refresh());
$("search").addEventListener("input", () => refresh());
$("select-shown").addEventListener("click", selectShown);
$("help-button").addEventListener("click", () => $("help").showModal());
$("chooser-input").addEventListener("input", showChoices);
$("chooser-input").addEventListener("keydown", event => {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (by && chooser.found.length) { event.preventDefault(); chooser.at = (chooser.at + by + chooser.found.length) % chooser.found.length; markChoice(); }
  else if (event.key === "Enter") { event.preventDefault(); choice(); }
});
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { if (data && current.tab === "suspects") focusCard(); });
}
for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => {
  const what = button.dataset.do;
  if (what === "clear") clearSelection();
  else if (what === "copy") copyNames();
  else if (what === "undo") send({});
  else act(what);
});

async function open() {
  if (!REVIEW) {
    data = JSON.parse($("data").textContent);
    start();
    return;
  }
  // The token has done its work: it is a cookie now, and need not stand in the address.
  history.replaceState(null, "", "/");
  $("loading").hidden = false;
  try {
    const [found, state] = await Promise.all([ask("/data.json"), ask("/decisions?since=0")]);
    data = found;
    generation = data.generation;
    last = state.last;
    taken(state.changed);
    $("refit").hidden = !data.refit;
    $("refit").addEventListener("click", refit);
    $("dock").hidden = false;
    start();
    focusCard(remote.size > 0);
    document.documentElement.dataset.unsaved = 0;
    addEventListener("beforeunload", event => { if (queue.length) event.preventDefault(); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
    poll.timer = setTimeout(poll, POLL);
  } catch (error) {
    $("loading").hidden = true;
    trouble(error.message);
  }
}
open();
})();
