// Shared by all pages: sortable tables, row filters, and charts that are drawn when opened.
"use strict";

document.documentElement.classList.add("with-script");

function valueOf(cell) {
  if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
  const text = cell.textContent.trim();
  const number = text.replaceAll(",", "");
  return /^[-+]?[\d.]+%?$/.test(number) ? parseFloat(number) : text;
}

function compareValues(a, b) {
  const numbers = typeof a === "number" && typeof b === "number";
  if (!numbers && typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // unknown values come last
  return numbers ? a - b : a.localeCompare(b);
}

// Rows without the heading of their group.
function dataRows(body) {
  return [...body.rows].filter((row) => !row.classList.contains("group"));
}

function sortBy(table, column, header) {
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of table.tHead.rows[0].cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  for (const body of table.tBodies) {
    const rows = dataRows(body);
    rows.sort((a, b) => direction * compareValues(valueOf(a.cells[column]), valueOf(b.cells[column])));
    body.append(...rows);
  }
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(table, column, header));
    header.append(button);
    header.setAttribute("aria-sort", "none");
  });
}

for (const input of document.querySelectorAll("input[data-filters]")) {
  const table = document.getElementById(input.dataset.filters);
  const said = document.getElementById(input.getAttribute("aria-describedby"));
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    let shown = 0, all = 0;
    for (const body of table.tBodies) {
      const group = body.querySelector(".group")?.textContent ?? "", rows = dataRows(body);
      for (const row of rows) {
        const text = `${group} ${row.textContent}`.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      const numShown = rows.filter((row) => !row.hidden).length;
      body.hidden = !numShown;
      shown += numShown;
      all += rows.length;
    }
    said.textContent = `${shown} of ${all} rows`;
  });
}

// Text and axes take the page's colours, so that they are readable in both themes.
const CHART = {
  $schema: "https://vega.github.io/schema/vega-lite/v6.json",
  background: null,
  config: {
    view: { stroke: null },
    axis: { labelColor: "currentColor", titleColor: "currentColor", domainColor: "currentColor",
            tickColor: "currentColor", gridColor: "#8885", titleFontWeight: "normal" },
    legend: { labelColor: "currentColor", titleColor: "currentColor" },
    title: { color: "currentColor", fontWeight: "normal", anchor: "start" },
  },
};

// `description` is the text for screen readers.
function draw(element, description, spec) {
  const compiled = vegaLite.compile({ ...CHART, ...spec, description }).spec;
  const view = new vega.View(vega.parse(compiled), { renderer: "svg", container: element, hover: true });
  return view.runAsync().then(() => {
    element.setAttribute("role", "img");
    element.tabIndex = 0; // on a narrow page the chart scrolls, also by keyboard
    element.setAttribute("aria-label", description);
    element.dataset.drawn = "yes";
  });
}
