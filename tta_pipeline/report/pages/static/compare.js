// Comparison of two experiments. All numbers are in `comparison.js`, which is written with the page.
"use strict";

const { experiments, cells, classes, errors, pairs, photographs, num_photographs, tile } = COMPARISON;
const choice = { a: document.getElementById("a"), b: document.getElementById("b") };
const percent = (value, digits = 1) => (value === null || value === undefined ? "-" : `${(100 * value).toFixed(digits)}%`);
const signed = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(100 * value).toFixed(1)}%`;
const P_LEVEL = 0.05;
const pText = (p) => (p < 1e-4 ? p.toExponential(0) : p < 0.001 ? p.toFixed(4) : p.toPrecision(2));

const wanted = new URLSearchParams(location.search);
for (const [side, usual] of [["a", experiments[0]], ["b", experiments[1]]]) {
  for (const name of experiments) choice[side].add(new Option(name, name));
  const asked = wanted.get(side);
  choice[side].value = experiments.includes(asked) ? asked : usual;
  choice[side].addEventListener("change", show);
}
document.getElementById("swap").addEventListener("click", () => {
  [choice.a.value, choice.b.value] = [choice.b.value, choice.a.value];
  show();
});

// A pair is stored once, with the verdict in both orders; for the reverse order, swap the counts.
function pairOf(a, b) {
  const inOrder = pairs[`${a} ${b}`];
  const stored = inOrder ?? pairs[`${b} ${a}`];
  if (!stored) return null;
  if (inOrder) return { cells: stored.cells, verdict: stored.verdicts[0] };
  const cells = stored.cells.map(([cell, onlyA, onlyB, pHolm]) => [cell, onlyB, onlyA, pHolm]);
  return { cells, verdict: stored.verdicts[1] };
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const verdict = (a, b, change, p) => (p > P_LEVEL ? "not shown" : change > 0 ? a : b);

function showMean(a, b, pair) {
  const said = document.getElementById("mean");
  if (a === b || !b) {
    said.textContent = b ? "Choose two different experiments." : "There is only one experiment.";
    return;
  }
  if (!pair) {
    said.textContent = `${a} and ${b} have no common cell with stored predictions of both.`;
    return;
  }
  said.textContent = pair.verdict ?? "None of their common cells counts in the mean.";
}

function rowsOf(a, b, pair) {
  return (pair ? pair.cells : []).map(([cell, onlyA, onlyB, p]) => {
    const errorA = errors[a][cell], errorB = errors[b][cell];
    const change = errorB - errorA;
    return { ...cells[cell], number: cell, errorA, errorB, change, onlyA, onlyB, p, better: verdict(a, b, change, p) };
  });
}

// One field for each cell: the mean over its streams and visits; the table lists them one by one.
function fieldsOf(rows) {
  const hasSeverities = rows.some((row) => row.severity);
  const cells = new Map();
  for (const row of rows) {
    if (hasSeverities && !row.severity) continue; // clean images have none
    cells.set(row.page, [...(cells.get(row.page) ?? []), row]);
  }
  const mean = (found, name) => found.reduce((sum, row) => sum + row[name], 0) / found.length;
  return [...cells.values()].map((found) => {
    const change = mean(found, "change");
    return {
      corruption: found[0].corruption, severity: found[0].severity, url: `cells/${found[0].page}.html`, change,
      text: signed(change), errorA: mean(found, "errorA"), errorB: mean(found, "errorB"), times: found.length,
    };
  });
}

// From blue to red; both ends of the scale say in words who is better.
const SCALE = ["#2166ac", "#f7f7f7", "#b2182b"];

function showScale(a, b, most, times) {
  document.getElementById("what").textContent =
    `Error of ${b} − error of ${a}${times > 1 ? `, mean over up to ${times} streams and visits of a cell` : ""}.`;
  const colours = element("span", { class: "colours", style: `background: linear-gradient(to right, ${SCALE})` });
  document.getElementById("scale").replaceChildren(
    element("span", {}, `${signed(-most)}, ${b} is better`), colours, element("span", {}, `${signed(most)}, ${a} is better`));
}

function showMap(a, b, rows) {
  const target = document.getElementById("map");
  target.replaceChildren();
  const values = fieldsOf(rows);
  if (!values.length) return;
  const most = Math.max(0.01, ...values.map((field) => Math.abs(field.change)));
  const corruptions = [...new Set(values.map((field) => field.corruption))];
  showScale(a, b, most, Math.max(...values.map((field) => field.times)));
  const spec = {
    data: { values },
    width: { step: innerWidth < 600 ? 44 : 58 }, height: { step: 22 },
    encoding: {
      x: { field: "severity", type: "ordinal", axis: { labelAngle: 0, orient: "top" } },
      y: { field: "corruption", type: "ordinal", sort: corruptions, title: null },
    },
    layer: [
      { mark: { type: "rect", stroke: "#8885" },
        encoding: { href: { field: "url" },
                    tooltip: [{ field: "corruption" }, { field: "severity" }, { field: "errorA", title: a, format: ".2%" },
                              { field: "errorB", title: b, format: ".2%" }],
                    color: { field: "change", type: "quantitative", scale: { domain: [-most, 0, most], range: SCALE },
                             legend: null } } },
      { mark: { type: "text", fontSize: 10 },
        encoding: { text: { field: "text" }, href: { field: "url" },
                    color: { condition: { test: `datum.change < ${-0.8 * most} || datum.change > ${0.7 * most}`, value: "white" }, value: "#1a1a1a" } } },
    ],
  };
  draw(target, `Error of ${b} minus error of ${a} by corruption and severity; the numbers are in the table below.`, spec);
}

function showSigns(a, b, rows) {
  const shown = (name) => rows.filter((row) => row.better === name).length;
  document.getElementById("signs").textContent = rows.length
    ? `Of ${rows.length} cells, ${a} is better by more than chance in ${shown(a)}, ${b} in ${shown(b)}; in ` +
      `${shown("not shown")} neither is shown to be better.`
    : "";
  const table = document.getElementById("cells");
  table.classList.toggle("one-stream", new Set(rows.map((row) => row.stream)).size < 2);
  const body = table.tBodies[0];
  body.replaceChildren(...rows.map((row) => {
    const link = element("a", { href: `cells/${row.page}.html` }, row.severity ? `${row.corruption} ${row.severity}` : row.corruption);
    const numbers = [[row.errorA, percent(row.errorA)], [row.errorB, percent(row.errorB)], [row.change, signed(row.change)],
                     [row.onlyA, row.onlyA], [row.onlyB, row.onlyB], [row.p, pText(row.p)]];
    return element("tr", {}, element("th", { scope: "row" }, link), element("td", { class: "text stream" }, row.stream),
      ...numbers.map(([value, text]) => element("td", { "data-v": value }, String(text))),
      element("td", { class: "text" }, row.better));
  }));
  document.querySelector("input[data-filters=cells]").dispatchEvent(new Event("input"));
  const heads = table.tHead.rows[0].cells;
  const labels = { 2: a, 3: b, 5: `only ${a} wrong`, 6: `only ${b} wrong` };
  for (const [column, text] of Object.entries(labels)) (heads[column].querySelector("button") ?? heads[column]).textContent = text;
}

function tileOf(page, number) {
  return element("img", {
    src: `cells/${page}.webp`, width: tile, height: tile, alt: "",
    style: `object-position: -${number * tile}px 0`,
  });
}

function showPhotographs(a, b) {
  for (const [right, wrong, name] of [[a, b, "only-b"], [b, a, "only-a"]]) {
    const found = [];
    for (const { page, title, photos } of photographs) {
      photos.forEach(([label, predicted], number) => {
        const [said, other] = [right, wrong].map((name) => predicted[experiments.indexOf(name)]);
        if (said !== label || other === null || other === undefined || other === label) return;
        found.push(element("li", {}, tileOf(page, number), element("p", {}, `label ${classes[label]}`),
          element("p", {}, `${wrong} says ${classes[other]}`), element("a", { href: `cells/${page}.html` }, title)));
      });
    }
    const list = document.getElementById(name);
    list.replaceChildren(...found.slice(0, 24));
    list.parentElement.hidden = !found.length;
  }
  document.getElementById("only-a-title").textContent = `${b} is right, ${a} is wrong`;
  document.getElementById("only-b-title").textContent = `${a} is right, ${b} is wrong`;
}

function show() {
  const a = choice.a.value, b = choice.b.value;
  const pair = a === b ? null : pairOf(a, b);
  const rows = rowsOf(a, b, pair);
  history.replaceState(null, "", `?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`);
  document.getElementById("command").textContent = `tta-pipeline compare ${a} ${b}`;
  showMean(a, b, pair);
  document.getElementById("where").parentElement.hidden = !rows.length;
  showMap(a, b, rows);
  showSigns(a, b, rows);
  showPhotographs(a, b);
}
show();
