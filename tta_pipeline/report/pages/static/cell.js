// The page of a cell: calibration and timeline of an experiment, drawn when its section is opened.
"use strict";

const CURVES = JSON.parse(document.getElementById("curves").textContent);
const BLUE = "#3d8fd1", ORANGE = "#e0702b";

function reliability(name) {
  const values = CURVES[name].bins.map(([confidence, accuracy, samples]) => ({ confidence, accuracy, samples }));
  const share = { format: ".0%", grid: true };
  return {
    title: "Accuracy at each confidence", width: 230, height: 200,
    layer: [
      { data: { values: [{ confidence: 0, accuracy: 0 }, { confidence: 1, accuracy: 1 }] },
        mark: { type: "line", color: "#888", strokeDash: [4, 3] } },
      { data: { values }, mark: { type: "circle", color: BLUE, opacity: 0.9 },
        encoding: { size: { field: "samples", type: "quantitative", legend: null, scale: { range: [12, 260] } } } },
    ],
    encoding: {
      x: { field: "confidence", type: "quantitative", axis: { ...share, title: "confidence" }, scale: { domain: [0, 1] } },
      y: { field: "accuracy", type: "quantitative", axis: { ...share, title: "accuracy" }, scale: { domain: [0, 1] } },
    },
  };
}

function timeline(name) {
  const parts = CURVES[name].batches.map(([image, accuracy, ms]) => ({ image, accuracy, ms }));
  const values = [{ ...parts[0], image: 0 }, ...parts]; // each is a step that ends at its last image
  const width = Math.min(380, innerWidth - 110);
  const x = { field: "image", type: "quantitative", title: "images so far", scale: { domain: [0, values.at(-1).image] } };
  const y = { type: "quantitative", title: null };
  const line = (color) => ({ type: "line", interpolate: "step-before", color });
  const resets = { data: { values: CURVES[name].resets.map((image) => ({ image })) },
                   mark: { type: "rule", color: "#888", strokeDash: [4, 3], aria: false }, encoding: { x: { ...x, title: null } } };
  return {
    data: { values },
    vconcat: [
      { title: CURVES[name].resets.length ? "Accuracy along the stream; dashed where the method reset itself" : "Accuracy along the stream",
        width, height: 80,
        layer: [
          resets,
          { mark: line(BLUE),
            encoding: { x: { ...x, title: null },
                        y: { ...y, field: "accuracy", scale: { zero: false }, axis: { format: ".0%", minExtent: 36 } } } },
        ] },
      { title: "Milliseconds per image, waiting for data included", width, height: 80, mark: line(ORANGE),
        encoding: { x, y: { ...y, field: "ms", axis: { minExtent: 36 } } } },
    ],
  };
}

function open(details) {
  const name = details.dataset.experiment;
  for (const element of details.querySelectorAll(".chart:not([data-drawn])")) {
    element.dataset.drawn = "begun";
    if (element.dataset.chart === "reliability") {
      draw(element, `Reliability diagram of ${name}: accuracy over confidence in ${CURVES[name].bins.length} bins.`, reliability(name));
    } else {
      const resets = CURVES[name].resets.length ? ` The method reset itself after ${CURVES[name].resets.join(", ")} images.` : "";
      draw(element, `Accuracy and milliseconds per image of ${name} along the stream.${resets}`, timeline(name));
    }
  }
}

for (const details of document.querySelectorAll("details.experiment")) {
  details.addEventListener("toggle", () => details.open && open(details));
}

function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named && named.matches("details.experiment")) {
    named.open = true;
    named.scrollIntoView();
  }
}
addEventListener("hashchange", openNamed);
openNamed();
