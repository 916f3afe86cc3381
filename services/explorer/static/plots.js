// Plots of what /trends.json holds. Colours come from the style sheet, and each series has its own dash as well.

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 4]];
const SHORT = 10;

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function label({ method, head }) {
  return head === null ? method : `${method} ${head.split(":").pop().slice(0, SHORT)}…`;
}

function line({ name }, place) {
  const colour = style(`--series-${place % 5}`);
  return {
    label: name, stroke: colour, width: 2, dash: DASHES[place % DASHES.length], spanGaps: true,
    points: { show: true, size: 5, fill: colour, stroke: colour },
    value: (_, value) => (value === null || value === undefined ? "" : format(value)),
  };
}

const iso = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19);

// The time of day under each tick, and under it the date where it is another one than before.
function timeLabels(_, ticks, __, ___, step) {
  let day = "";
  return ticks.map((tick) => {
    const [date, time] = iso(tick).split("T");
    if (step >= 86400) return date;
    const shown = step >= 60 ? time.slice(0, 5) : time;
    const label = date === day ? shown : `${shown}\n${date}`;
    day = date;
    return label;
  });
}

const format = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(2));

function lines(name, { times, series, growth }) {
  if (name === "growth") return [growth.times, [{ name: "entries", values: growth.entries }]];
  const drawn = series.filter((each) => each[name].some((value) => value !== null));
  return [times, drawn.map((each) => ({ name: label(each), values: each[name] }))];
}

const axis = () => ({
  stroke: style("--quiet"), font: `12px ${style("--sans")}`, labelFont: `12px ${style("--sans")}`,
  grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 },
});

function draw(element, document_) {
  const [times, drawn] = lines(element.dataset.plot, document_);
  if (drawn.length === 0) {
    element.textContent = "Nothing to plot so far.";
    return;
  }
  const options = {
    width: element.clientWidth,
    height: 280,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    scales: { y: { range: (_, __, most) => [0, element.dataset.plot === "acceptance" ? 1 : most * 1.1 || 1] } },
    axes: [{ ...axis(), space: 80, values: timeLabels }, { ...axis(), size: 56, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en")) }],
    series: [{ label: "UTC", value: (_, seconds) => (seconds ? iso(seconds).replace("T", " ") : "") }, ...drawn.map(line)],
  };
  const newest = [times.length - 1, ...drawn.map((each) => each.values.findLastIndex((value) => value !== null))];
  // Away from the cursor the legend has the newest value of each series, which may be of different times.
  options.hooks = { setCursor: [(plot) => plot.cursor.idx ?? plot.setLegend({ idxs: newest }, false)] };
  const plot = new uPlot(options, [times, ...drawn.map((each) => each.values)], element);
  plot.setLegend({ idxs: newest }, false);
  plot.root.querySelector("table").setAttribute("role", "presentation");
  new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: options.height })).observe(element);
}

const plots = document.querySelectorAll("[data-plot]");

async function run() {
  const answer = await fetch(plots[0].dataset.source, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(`what to plot cannot be had (${answer.status})`);
  const found = await answer.json();
  const drawAll = () => {
    for (const element of plots) {
      element.replaceChildren();
      draw(element, found);
    }
  };
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

run().catch((error) => {
  for (const element of plots) element.textContent = `Not plotted: ${error.message}.`;
});
