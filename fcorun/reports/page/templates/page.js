"use strict";
// The state of the page stands behind # in its address: #sort=seconds,desc&filter=fedmid&x=bytes&yscale=log
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const curves = data.curves;
  const state = { x: "rounds", xscale: "linear", yscale: "auto", metric: "usual", show: "best", problem: "0" };
  const AXES = { rounds: "communication round", bytes: "communication, up and down (B)",
                 grad_evals: "gradient evaluations", seconds: "time (s)",
                 simulated_seconds: "simulated time (s)", ...(curves ? curves.axes : {}) };
  const errors = [];
  const reportError = text => { errors.push(text); root.dataset.errors = errors.length; };
  addEventListener("error", event => reportError(event.message));
  addEventListener("unhandledrejection", event => reportError(String(event.reason)));
  root.dataset.errors = 0;

  async function loadPlotly() { // the library is compressed in the page: browsers of before 2023 cannot read it
    if (window.Plotly) return; // a live page has it beside it
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), letter => letter.charCodeAt(0));
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
    script.remove();
  }

  // ---- charts
  let printing = false;
  const cssVariable = name => getComputedStyle(root).getPropertyValue(name).trim();
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
  const withForeground = (content, colour) => JSON.parse(JSON.stringify(content).replaceAll('"@fg"', JSON.stringify(colour)));
  const isObject = value => value && typeof value === "object" && !Array.isArray(value);
  const merge = (base, changes) => { // of nested objects; changes win
    for (const [key, value] of Object.entries(changes)) base[key] = base[key] && isObject(value) ? merge(base[key], value) : value;
    return base;
  };
  // the least and the largest value; a spread of Math.min over all values would exceed the number of arguments
  const rangeOf = values => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  function logTicks(values) { // few ticks of a logarithmic axis
    const [low, high] = rangeOf(values.filter(value => value > 0));
    const decades = Math.log10(high / low);
    if (!(decades > 0)) return {};
    return { dtick: decades < 2.5 ? "D2" : Math.ceil(decades / 6) };
  }
  function paperWidth(chart) { // a sheet is two charts wide; the last of an odd number is as wide as two
    const grid = chart.parentElement;
    return grid.children.length % 2 === 1 && chart === grid.lastElementChild ? 700 : 340;
  }
  const isOpen = element => !element.closest("details:not([open])"); // a collapsed chart has no width, and is drawn later
  function plot(chart, traces, layout) {
    const foreground = printing ? "#000" : cssVariable("--fg"), lineColour = printing ? "#bbb" : cssVariable("--line");
    const axis = { gridcolor: lineColour, zerolinecolor: lineColour, linecolor: lineColour, automargin: true, exponentformat: "power" };
    const defaults = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: foreground, size: 12 },
      margin: { l: 60, r: 15, t: 30, b: 50 }, height: printing ? 260 : 340, xaxis: { ...axis }, yaxis: { ...axis },
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" }, hoverlabel: { namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: cssVariable("--soft"), activecolor: foreground },
    };
    const merged = merge(defaults, withForeground(layout, foreground));
    for (const [name, coordinate] of [["xaxis", "x"], ["yaxis", "y"]])
      if (merged[name].type === "log" && !merged[name].dtick)
        Object.assign(merged[name], logTicks(traces.flatMap(trace => trace[coordinate])));
    const inLegend = traces.filter(trace => trace.showlegend);
    merged.showlegend = inLegend.length > 1;
    if (merged.showlegend) { // below the axis, in as many rows as its names need
      const legendWidth = inLegend.reduce((sum, trace) => sum + 6.5 * trace.name.length + 48, 0);
      const chartWidth = printing ? paperWidth(chart) : chart.clientWidth;
      const rows = Math.ceil(legendWidth / Math.max(200, chartWidth - 80));
      merged.margin.b += 20 * rows;
      merged.height += 20 * rows;
    }
    chart.style.height = merged.height + "px";
    if (printing) merged.width = paperWidth(chart);
    return Plotly.react(chart, withForeground(traces, foreground), merged, config);
  }

  // ---- curves
  function selectRuns() { // the runs whose curves the controls ask for
    let shown = run => state.show === "all" || run.best;
    if (state.show === "table") {
      const rows = [...document.querySelectorAll("#runs tbody tr:not([hidden])")];
      const numbers = new Set(rows.map(row => Number(row.dataset.run)));
      shown = run => numbers.has(run.run);
    }
    return curves.runs.filter(run => run.problems.includes(Number(state.problem)) && shown(run));
  }
  function makeTraces(runs, metric) { // beside rounds, the solution of a baseline is a level line across the other curves
    const allBaselines = runs.every(run => run.baseline), legendNames = new Set(), traces = [];
    const isLevel = run => run.baseline && !allBaselines;
    const xValues = run => curves.arrays[run.columns[run.baseline ? "rounds" : state.x]];
    const drawn = value => value > 0 || state.xscale !== "log";
    const [low, high] = rangeOf(runs.filter(run => !isLevel(run)).flatMap(run => (xValues(run) || []).filter(drawn)));
    let missing = 0;
    for (const run of runs) {
      const column = curves.arrays[run.columns[metric]];
      if (!column) continue;
      const level = isLevel(run), x = level ? [low, high] : xValues(run);
      if (!x || x.length === 0 || (level && !(high >= low))) { missing += 1; continue; }
      const name = run.algo + (level ? " (its solution)" : "");
      const faint = state.show !== "best" && !run.best;
      traces.push({
        type: "scatter", mode: x.length > 1 ? "lines" : "markers", x, y: level ? [column.at(-1), column.at(-1)] : column,
        name, legendgroup: name, meta: run.diverged, showlegend: !legendNames.has(name),
        line: { ...run.line, width: faint ? 1 : 2 }, opacity: faint ? 0.55 : 1,
        hovertemplate: `${run.name}<br>%{x:.4s}: %{y:.5g}<extra></extra>`,
      });
      legendNames.add(name);
    }
    return { traces, missing };
  }
  function yAxis(traces, metric) { // what diverged may leave the axis, and rounding far below is not shown
    const finished = traces.filter(trace => !trace.meta);
    const values = (finished.length ? finished : traces).flatMap(trace => trace.y).filter(value => value !== null);
    const title = { text: curves.metrics[metric].label };
    const [least, largest] = rangeOf(values.filter(value => value > 0));
    const hasNegative = values.some(value => value < -1e-5 * Math.max(largest, 0)); // more than rounding
    const suitsLog = curves.metrics[metric].log && largest > 4 * least && !hasNegative;
    if (state.yscale === "log" || (state.yscale === "auto" && suitsLog)) {
      const [low, high] = [Math.max(least, 2e-10 * largest), largest].map(Math.log10);
      if (!Number.isFinite(low)) return { title, type: "log" };
      const room = 0.05 * (high - low) || 0.3;
      return { title, type: "log", range: [low - room, high + room], ...logTicks([10 ** low, 10 ** high]) };
    }
    const [low, high] = rangeOf(values);
    if (!Number.isFinite(low)) return { title, type: "linear" };
    const room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1;
    return { title, type: "linear", range: [low - room, high + room] };
  }
  async function drawCurves() {
    if (!curves || !window.Plotly) return;
    const grid = document.getElementById("curve-charts"), runs = selectRuns();
    const metrics = state.metric === "usual" ? curves.usual_metrics : [state.metric];
    const charts = metrics.map((_, i) => grid.children[i] || grid.appendChild(document.createElement("div")));
    while (grid.children.length > charts.length) { Plotly.purge(grid.lastChild); grid.lastChild.remove(); }
    const onlyBaselines = runs.length && runs.every(run => run.baseline);
    let mostMissing = 0;
    if (isOpen(grid)) await Promise.all(charts.map((chart, i) => {
      const { traces, missing } = makeTraces(runs, metrics[i]);
      mostMissing = Math.max(mostMissing, missing);
      chart.className = "chart";
      chart.setAttribute("role", "img");
      chart.setAttribute("aria-label", `curves of ${metrics[i]}`);
      return plot(chart, traces, {
        xaxis: { title: { text: onlyBaselines ? "iteration" : AXES[state.x] }, type: state.xscale, tickformat: state.x.endsWith("seconds") ? "" : "~s" },
        yaxis: yAxis(traces, metrics[i]),
      });
    }));
    const hasLevelLines = state.show === "best" && runs.some(run => run.baseline) && !onlyBaselines;
    document.getElementById("curve-note").textContent = [
      runs.length ? `${runs.length} of ${curves.runs.length} curves, a line a run` : "no run to show",
      runs.some(run => run.diverged) ? "what diverged may leave the frame" : "",
      mostMissing ? `${mostMissing} runs did not count ${state.x}, and are not drawn` : "",
      hasLevelLines ? "a level line is the solution of a baseline, which has no rounds" : "",
    ].filter(Boolean).join("; ") + ".";
    root.dataset.x = state.x;
    root.dataset.curves = runs.length;
  }

  // ---- tables
  const cellValue = (row, column) => { // the number of a cell with data-v, in all its digits if it has them, else the text
    const cell = row.cells[column];
    return cell.dataset.v !== undefined ? Number(cell.dataset.v || cell.textContent) : cell.textContent;
  };
  function sortBy(table, key, descending) {
    const headers = [...table.tHead.rows[0].cells], column = headers.findIndex(header => header.dataset.key === key);
    if (column < 0) return;
    const compare = (row, otherRow) => {
      const [value, other] = [cellValue(row, column), cellValue(otherRow, column)];
      if (value === "" || other === "") return (value === "") - (other === ""); // empty cells come last
      const difference = typeof value === "number" && typeof other === "number" ? value - other
        : String(value).localeCompare(String(other), undefined, { numeric: true });
      return descending ? -difference : difference;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    const direction = descending ? "descending" : "ascending";
    headers.forEach((header, i) => header.setAttribute("aria-sort", i === column ? direction : "none"));
  }
  const runsTable = document.getElementById("runs");
  function filterBy(text) { // rows that match all words: a word of the row, or KEY=VALUE
    if (!runsTable) return;
    const keys = [...runsTable.tHead.rows[0].cells].map(header => header.dataset.key.toLowerCase());
    const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map(word => {
      const [key, ...rest] = word.split("="), column = keys.indexOf(key);
      if (!rest.length || column < 0) return row => row.textContent.toLowerCase().includes(word);
      const wanted = rest.join("=");
      const bare = text => key === "status" ? text.split(",")[0] : text; // "done, falling" is done
      return row => bare(row.cells[column].textContent.toLowerCase()) === wanted
        || (wanted !== "" && row.cells[column].dataset.v !== undefined && cellValue(row, column) === Number(wanted));
    });
    const rows = [...runsTable.tBodies[0].rows];
    for (const row of rows) row.hidden = !tests.every(test => test(row));
    const count = document.getElementById("count");
    if (count) count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
  }

  // ---- the address
  const readAddress = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  function writeAddress(key, text) {
    const parameters = readAddress();
    if (text) parameters.set(key, text); else parameters.delete(key);
    history.replaceState(null, "", `#${parameters}`);
  }
  const filterInput = document.querySelector("input[name=filter]");
  function applyAddress() {
    const parameters = readAddress();
    for (const key of Object.keys(state)) {
      const control = document.querySelector(`#curves select[name=${key}]`), value = parameters.get(key);
      if (control && value !== null && [...control.options].some(option => option.value === value)) control.value = state[key] = value;
    }
    if (filterInput && parameters.has("filter")) filterInput.value = parameters.get("filter");
    if (filterInput) filterBy(filterInput.value);
    if (parameters.has("sort") && runsTable) {
      const [, key, descending] = parameters.get("sort").match(/^(.*?)(,desc)?$/);
      sortBy(runsTable, key, Boolean(descending));
    }
    return drawCurves();
  }

  // ---- controls
  function addOptions(name, values, texts) { // a control with one option is hidden
    const control = document.querySelector(`#curves select[name=${name}]`);
    values.forEach((value, i) => control.add(new Option(texts[i], value)));
    if (values.length < 2) control.parentElement.hidden = true;
  }
  if (curves) {
    const countedAxes = Object.keys(AXES).filter(x => curves.runs.some(run => x in run.columns));
    addOptions("x", countedAxes, countedAxes.map(x => x === "grad_evals" ? "gradients" : x));
    const metricNames = Object.keys(curves.metrics);
    addOptions("metric", ["usual", ...metricNames], ["the usual ones", ...metricNames]);
    addOptions("problem", curves.problems.map((_, i) => String(i)), curves.problems);
    if (curves.runs.length < 2) document.querySelector("[data-several]").hidden = true;
    for (const control of document.querySelectorAll("#curves select")) control.addEventListener("change", () => {
      state[control.name] = control.value;
      writeAddress(control.name, control.value);
      drawCurves();
    });
  }
  for (const form of document.querySelectorAll("form")) form.addEventListener("submit", event => event.preventDefault());
  if (filterInput) filterInput.addEventListener("input", () => {
    filterBy(filterInput.value);
    writeAddress("filter", filterInput.value);
    if (state.show === "table") drawCurves();
  });
  for (const header of document.querySelectorAll("th[aria-sort]")) header.firstChild.addEventListener("click", () => {
    const table = header.closest("table"), descending = header.getAttribute("aria-sort") === "ascending";
    sortBy(table, header.dataset.key, descending);
    if (table === runsTable) writeAddress("sort", header.dataset.key + (descending ? ",desc" : ""));
  });
  if (runsTable) for (const row of runsTable.tBodies[0].rows) row.classList.toggle("best", row.cells[0].textContent === "*");

  function openTargets() { // open what the address names: a section, or the table that it sorts or filters
    const section = location.hash && !location.hash.includes("=") ? document.getElementById(location.hash.slice(1)) : null;
    const namesTable = readAddress().has("filter") || readAddress().has("sort");
    for (const target of [section, namesTable ? runsTable : null]) {
      const details = target && (target.querySelector(":scope > details") || target.closest("details"));
      if (details) details.open = true;
    }
  }
  const drawAll = () => window.Plotly && applyAddress();
  addEventListener("hashchange", () => { openTargets(); if (location.hash.includes("=")) applyAddress(); });
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", () => { if (details.open) drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { printing = true; drawAll(); });
  addEventListener("afterprint", () => { printing = false; drawAll(); });
  openTargets();
  applyAddress();
  const ready = () => { root.dataset.ready = document.querySelectorAll("#curve-charts .main-svg, .drawn svg").length; };
  (curves ? loadPlotly().then(drawAll) : Promise.resolve()).then(ready, error => {
    document.getElementById("curve-charts").textContent = "Not drawn: this browser is too old.";
    reportError(String(error));
    console.error(error);
  });
})();
