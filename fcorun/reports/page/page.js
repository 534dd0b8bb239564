"use strict";
// The state of the page stands behind # in its address: #sort=seconds,desc&filter=fedmid&x=bytes&yscale=log
(() => {
  const root = document.documentElement, data = JSON.parse(document.getElementById("data").textContent);
  const curves = data.curves, state = { x: "rounds", xscale: "linear", yscale: "auto", metric: "usual", show: "best", problem: "0" };
  const AXES = { rounds: "communication round", bytes: "communication, up and down (B)",
                 grad_evals: "gradient evaluations", seconds: "time (s)" };
  const errors = [];
  const wrong = text => { errors.push(text); root.dataset.errors = errors.length; };
  addEventListener("error", event => wrong(event.message));
  addEventListener("unhandledrejection", event => wrong(String(event.reason)));
  root.dataset.errors = 0;

  async function unpacked() { // the library, which is compressed: browsers of before 2023 cannot read it
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), letter => letter.charCodeAt(0));
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
    script.remove();
  }

  // ---- charts
  let printing = false;
  const colour = name => getComputedStyle(root).getPropertyValue(name).trim();
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
  const themed = (content, fg) => JSON.parse(JSON.stringify(content).replaceAll('"@fg"', JSON.stringify(fg)));
  const merged = (below, above) => {
    for (const [key, value] of Object.entries(above))
      below[key] = value && below[key] && typeof value === "object" && !Array.isArray(value) ? merged(below[key], value) : value;
    return below;
  };
  function spaced(values) { // few ticks of a logarithmic axis
    const found = values.filter(value => value > 0), ends = found.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, 0]);
    const decades = Math.log10(ends[1] / ends[0]);
    return decades > 0 && decades < 2.5 ? { dtick: "D2" } : decades >= 2.5 ? { dtick: Math.ceil(decades / 6) } : {};
  }
  function onPaper(place) { // a sheet is two charts wide; the last of an odd number is as wide as two
    const item = place.closest("figure") || place, charts = item.parentElement;
    const two = charts.classList.contains("charts") && (charts.children.length % 2 === 0 || item !== charts.lastElementChild);
    return two ? 340 : 700;
  }
  const shown = place => !place.closest("details:not([open])"); // a chart that is folded has no width, and is drawn later
  function plot(place, traces, layout) {
    const fg = printing ? "#000" : colour("--fg"), line = printing ? "#bbb" : colour("--line");
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, exponentformat: "power" };
    const own = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: fg, size: 12 },
                  margin: { l: 60, r: 15, t: layout.title ? 45 : 30, b: 50 }, height: printing ? 260 : 340, xaxis: { ...axis }, yaxis: { ...axis },
                  legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" }, hoverlabel: { namelength: -1 },
                  modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: fg } };
    const told = merged(own, themed(layout, fg));
    for (const [name, each] of [["xaxis", "x"], ["yaxis", "y"]])
      if (told[name].type === "log" && !told[name].dtick) Object.assign(told[name], spaced(traces.flatMap(trace => trace[each])));
    if (told.title) Object.assign(told.title, { x: 0.02, xanchor: "left", font: { size: 14 } });
    told.showlegend = traces.filter(trace => trace.showlegend).length > 1;
    if (told.showlegend) { // below the axis, in as many rows as its names need
      const wide = traces.filter(trace => trace.showlegend).reduce((sum, trace) => sum + 6.5 * trace.name.length + 48, 0);
      const rows = Math.ceil(wide / Math.max(200, (printing ? onPaper(place) : place.clientWidth) - 80));
      told.margin.b += 20 * rows;
      told.height += 20 * rows;
    }
    place.style.height = told.height + "px";
    if (printing) told.width = onPaper(place);
    return Plotly.react(place, themed(traces, fg), told, config);
  }
  const fixed = () => Promise.all([...document.querySelectorAll("[data-chart]")].filter(shown).map(place => {
    const { traces, layout } = data.charts[Number(place.dataset.chart)];
    return plot(place, traces, layout);
  }));

  function chosen() {
    const shown = state.show === "table" ? new Set([...document.querySelectorAll("#runs tbody tr:not([hidden])")].map(row => Number(row.dataset.run))) : null;
    return curves.runs.filter(run => String(run.problem) === state.problem
      && (shown ? shown.has(run.run) : state.show === "all" || run.best));
  }
  function traces(runs, metric) {
    const level = runs.some(run => !run.level), legends = new Set(), found = [];
    let low = Infinity, high = -Infinity, missing = 0;
    const across = run => curves.arrays[run.columns[run.level && !level ? "rounds" : state.x]];
    for (const run of runs.filter(run => !(run.level && level)))
      for (const value of across(run) || []) if (value > 0 || state.xscale !== "log") { low = Math.min(low, value); high = Math.max(high, value); }
    for (const run of runs) {
      const y = curves.arrays[run.columns[metric]], flat = run.level && level, x = flat ? [low, high] : across(run);
      if (!y) continue;
      if (!x || x.length === 0 || (flat && !(high >= low))) { missing += 1; continue; }
      const name = run.algo + (flat ? " (its solution)" : ""), faint = state.show !== "best" && !run.best;
      found.push({ type: "scatter", mode: x.length > 1 ? "lines" : "markers", x, y: flat ? [y.at(-1), y.at(-1)] : y, name, legendgroup: name, meta: run.diverged,
                   showlegend: !legends.has(name), line: { ...run.line, width: faint ? 1 : 2 }, opacity: faint ? 0.55 : 1,
                   hovertemplate: `${run.name}<br>%{x:.4s}: %{y:.5g}<extra></extra>` });
      legends.add(name);
    }
    return { found, missing };
  }
  function vertical(found, metric) { // the y axis: what diverged may leave it, and rounding far below is not shown
    const kept = found.filter(trace => !trace.meta), values = (kept.length ? kept : found).flatMap(trace => trace.y).filter(v => v !== null);
    const range = list => list.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    const positive = range(values.filter(value => value > 0)), title = { text: curves.metrics[metric].label };
    const suits = curves.metrics[metric].log && positive[1] > 4 * positive[0];
    if (state.yscale === "log" || (state.yscale === "auto" && suits)) {
      const [low, high] = [Math.max(positive[0], 2e-10 * positive[1]), positive[1]].map(Math.log10), room = 0.05 * (high - low) || 0.3;
      return Number.isFinite(low) ? { title, type: "log", range: [low - room, high + room], ...spaced([10 ** low, 10 ** high]) } : { title, type: "log" };
    }
    const [low, high] = range(values), room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1;
    return { title, type: "linear", ...(Number.isFinite(low) ? { range: [low - room, high + room] } : {}) };
  }
  async function drawCurves() {
    if (!curves || !window.Plotly) return;
    const place = document.getElementById("curve-charts"), runs = chosen(), lost = new Set();
    const metrics = state.metric === "usual" ? curves.usual : [state.metric];
    const divs = metrics.map((_, i) => place.children[i] || place.appendChild(document.createElement("div")));
    while (place.children.length > divs.length) { Plotly.purge(place.lastChild); place.lastChild.remove(); }
    let left = 0;
    if (shown(place)) await Promise.all(divs.map((div, i) => {
      const { found, missing } = traces(runs, metrics[i]), iterations = runs.length && runs.every(run => run.level);
      left = Math.max(left, missing);
      div.className = "chart";
      div.setAttribute("role", "img");
      div.setAttribute("aria-label", `curves of ${metrics[i]}`);
      return plot(div, found, {
        xaxis: { title: { text: iterations ? "iteration" : AXES[state.x] }, type: state.xscale, tickformat: state.x === "seconds" ? "" : "~s" },
        yaxis: vertical(found, metrics[i]),
      });
    }));
    document.getElementById("curve-note").textContent = [
      runs.length ? `${runs.length} of ${curves.runs.length} curves, a line a run` : "no run to show",
      runs.some(run => run.diverged) ? "what diverged may leave the frame" : "",
      left ? `${left} runs did not count ${AXES[state.x]}, and are not drawn` : "",
      state.show === "best" && runs.some(run => run.level) && runs.some(run => !run.level) ? "a level line is the solution of a baseline, which has no rounds" : "",
    ].filter(Boolean).join("; ") + ".";
    root.dataset.x = state.x;
    root.dataset.curves = runs.length;
  }

  // ---- tables
  const value = (row, place) => {
    const cell = row.cells[place];
    return cell.dataset.v !== undefined ? Number(cell.dataset.v || cell.textContent) : cell.textContent;
  };
  function sortBy(table, key, down) {
    const heads = [...table.tHead.rows[0].cells], place = heads.findIndex(head => head.dataset.key === key);
    if (place < 0) return;
    const order = (a, b) => {
      const [one, two] = [value(a, place), value(b, place)];
      if (one === "" || two === "") return (one === "") - (two === ""); // what has no value comes last
      const less = typeof one === "number" && typeof two === "number" ? one - two
        : String(one).localeCompare(String(two), undefined, { numeric: true });
      return down ? -less : less;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    heads.forEach((head, i) => head.setAttribute("aria-sort", i === place ? (down ? "descending" : "ascending") : "none"));
  }
  const table = document.getElementById("runs");
  function filterBy(text) {
    if (!table) return;
    const keys = [...table.tHead.rows[0].cells].map(head => head.dataset.key);
    const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map(word => {
      const [key, ...rest] = word.split("="), place = keys.findIndex(name => name.toLowerCase() === key);
      if (!rest.length || place < 0) return row => row.textContent.toLowerCase().includes(word);
      const wanted = rest.join("=");
      return row => row.cells[place].textContent.toLowerCase() === wanted
        || (wanted !== "" && row.cells[place].dataset.v !== undefined && value(row, place) === Number(wanted));
    });
    let shown = 0;
    for (const row of table.tBodies[0].rows) shown += !(row.hidden = !tests.every(test => test(row)));
    const count = document.getElementById("count");
    if (count) count.textContent = `${shown} of ${table.tBodies[0].rows.length}`;
  }

  // ---- the address
  const asked = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  function remember(key, text) {
    const found = asked();
    if (text) found.set(key, text); else found.delete(key);
    history.replaceState(null, "", `#${found}`);
  }
  function apply() {
    const found = asked();
    for (const key of Object.keys(state)) {
      const control = document.querySelector(`#curves select[name=${key}]`), told = found.get(key);
      if (control && told !== null && [...control.options].some(option => option.value === told)) control.value = state[key] = told;
    }
    const filter = document.querySelector("input[name=filter]");
    if (filter && found.has("filter")) filter.value = found.get("filter");
    if (filter) filterBy(filter.value);
    if (found.has("sort") && table) {
      const [, key, down] = found.get("sort").match(/^(.*?)(,desc)?$/);
      sortBy(table, key, Boolean(down));
    }
    return drawCurves();
  }

  // ---- controls
  function options(name, values, texts) {
    const control = document.querySelector(`#curves select[name=${name}]`);
    values.forEach((each, i) => control.add(new Option(texts[i], each)));
    if (values.length < 2) control.parentElement.hidden = true;
  }
  if (curves) {
    const counted = Object.keys(AXES).filter(x => curves.runs.some(run => x in run.columns));
    options("x", counted, counted.map(x => ({ grad_evals: "gradients" })[x] || x));
    const names = Object.keys(curves.metrics);
    options("metric", ["usual", ...names], ["the usual ones", ...names]);
    options("problem", curves.problems.map((_, i) => String(i)), curves.problems);
    if (curves.runs.length < 2) document.querySelector("[data-several]").hidden = true;
    for (const control of document.querySelectorAll("#curves select"))
      control.addEventListener("change", () => { state[control.name] = control.value; remember(control.name, control.value); drawCurves(); });
  }
  for (const form of document.querySelectorAll("form")) form.addEventListener("submit", event => event.preventDefault());
  const filter = document.querySelector("input[name=filter]");
  if (filter) filter.addEventListener("input", () => {
    filterBy(filter.value);
    remember("filter", filter.value);
    if (state.show === "table") drawCurves();
  });
  for (const head of document.querySelectorAll("th[aria-sort]")) head.firstChild.addEventListener("click", () => {
    const own = head.closest("table"), down = head.getAttribute("aria-sort") === "ascending";
    sortBy(own, head.dataset.key, down);
    if (own === table) remember("sort", head.dataset.key + (down ? ",desc" : ""));
  });
  if (table) for (const row of table.tBodies[0].rows) row.classList.toggle("best", row.cells[0].textContent === "*");

  function unfold() { // what the address names
    const named = location.hash && !location.hash.includes("=") ? document.getElementById(location.hash.slice(1)) : null;
    const wanted = [named, asked().has("filter") || asked().has("sort") ? table : null];
    for (const each of wanted) {
      const folded = each && (each.querySelector(":scope > details") || each.closest("details"));
      if (folded) folded.open = true;
    }
  }
  const all = () => window.Plotly && Promise.all([fixed(), apply()]);
  addEventListener("hashchange", () => { unfold(); if (location.hash.includes("=")) apply(); });
  for (const folded of document.querySelectorAll("details")) folded.addEventListener("toggle", () => { if (folded.open) all(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  addEventListener("beforeprint", () => { printing = true; all(); });
  addEventListener("afterprint", () => { printing = false; all(); });
  unfold();
  apply();
  unpacked().then(all).then(() => { root.dataset.ready = document.querySelectorAll(".chart .main-svg").length; }, error => {
    for (const place of document.querySelectorAll(".chart, #curve-charts")) place.textContent = "Not drawn: this browser is too old.";
    wrong(String(error));
    console.error(error);
  });
})();
