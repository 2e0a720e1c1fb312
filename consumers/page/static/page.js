// The live part of a page: the view, which is asked for again and morphed in while the tab is seen, and the charts.
// Text of others comes as escaped HTML of our templates, or is set as text here; none is ever made markup.
"use strict";
(() => {
  const view = document.getElementById("view");
  const live = document.getElementById("live");
  const wording = live.textContent;

  const path = () => location.pathname + location.search;

  // -- the view, asked for anew while the tab is seen; the server answers 304 where nothing has changed. --
  const POLL_MS = 2000;
  let timer = 0, tag = "";
  function wait(ms) {
    clearTimeout(timer);
    timer = document.hidden || !("live" in view.dataset) ? 0 : setTimeout(ask, ms);
  }
  async function ask() {
    const of = path();
    try {
      const answer = await fetch(of, { headers: { "HX-Request": "true", "If-None-Match": tag } });
      const html = await answer.text();
      if (of !== path()) return;  // another view meanwhile, which has its own
      live.textContent = wording;
      if (answer.status !== 304 && answer.headers.get("content-type")?.startsWith("text/html")) {
        tag = answer.headers.get("etag") ?? "";
        Idiomorph.morph(view, html, { morphStyle: "innerHTML", ignoreActiveValue: true, callbacks: kept });
        refresh();
      }
    } catch { live.textContent = "waiting for the page's server"; } finally { wait(POLL_MS); }
  }
  document.addEventListener("visibilitychange", () => wait(0));
  addEventListener("pageshow", () => wait(POLL_MS));
  // Charts are ours, not the server's; what a person opened stays open.
  const kept = {
    beforeNodeMorphed(old, now) {
      if (old.nodeType !== 1) return true;
      if (old.dataset.json) { old.dataset.mark = now.dataset.mark; return false; }
      if (old.tagName === "DETAILS") now.open = old.open;
      return true;
    },
  };

  // -- charts --
  const drawn = new Map();
  // light-dark() is resolved by a property that takes colours, not by the variable's text.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  function paint(name) {
    probe.style.color = "var(" + name + ")";
    return getComputedStyle(probe).color;
  }
  const faint = (rgb) => rgb.replace("rgb(", "rgba(").replace(")", ", 0.35)");
  // To three digits, and a tie to the even one, as the server's numbers are.
  function short(value) {
    if (value == null) return "-";
    if (Math.abs(value) >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    if (!value) return "0";
    const scale = 10 ** (2 - Math.floor(Math.log10(Math.abs(value)))), scaled = value * scale, near = Math.round(scaled);
    return String(+((Math.abs(scaled % 1) === 0.5 && near % 2 ? near - 1 : near) / scale).toPrecision(3));
  }

  let asked = "", isAsking = false;
  async function refresh() {
    const section = view.querySelector("[data-json]");
    if (!section || section.dataset.mark === asked || isAsking) return;
    isAsking = true;
    const mark = section.dataset.mark;
    try {
      const answer = await fetch(section.dataset.json);
      if (!answer.ok) return;
      show(section, await answer.json());
      asked = mark;
    } catch { /* the next snapshot asks again */ } finally { isAsking = false; }
    if (asked === mark) refresh();  // a snapshot that came meanwhile
  }
  function show(section, numbers) {
    const wanted = new Set(numbers.charts.map((chart) => chart.id));
    for (const [id, one] of drawn) if (!wanted.has(id)) { one.close(); drawn.delete(id); }
    for (const chart of numbers.charts) {
      const known = drawn.get(chart.id);
      const names = chart.series.map((one) => one.name).join("\n");
      if (known && known.names === names) known.update(chart, numbers);
      else { if (known) known.close(); drawn.set(chart.id, picture(section, chart, numbers, names)); }
    }
    if (!numbers.charts.length) section.textContent = "No step is recorded yet.";
  }
  function element(tag, text, parent) {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }
  function picture(section, chart, numbers, names) {
    if (!drawn.size && section.firstChild && section.firstChild.nodeType === 3) section.textContent = "";
    const figure = element("figure", "", section);
    figure.className = "chart";
    const caption = element("figcaption", chart.title, figure);
    const unit = element("small", chart.unit, caption);
    const box = element("div", "", figure);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", chart.title + " by step; the numbers stand in the table below");
    const details = element("details", "", figure);
    element("summary", "Numbers", details);
    const rows = element("div", "", details);
    rows.className = "rows";
    rows.tabIndex = 0;
    let now = { chart, numbers }, plot = null;
    const make = () => {
      if (plot) plot.destroy();
      plot = new uPlot(options(now.chart, now.numbers, box.clientWidth || 300), columns(now.chart, now.numbers), box);
    };
    const table = () => { if (details.open) tabulate(rows, now.chart, now.numbers); };
    details.addEventListener("toggle", table);
    const watcher = new ResizeObserver(() => plot && plot.setSize({ width: box.clientWidth, height: 190 }));
    make();
    watcher.observe(box);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    return {
      names,
      update(chart, numbers) { now = { chart, numbers }; unit.textContent = chart.unit; make(); table(); },
      close() { watcher.disconnect(); dark.removeEventListener("change", make); plot.destroy(); figure.remove(); },
    };
  }
  const axis = (chart, numbers) => chart.steps.length ? chart.steps : numbers.steps;
  const color = (one, at) => one.form === "strong" || one.form === "faint" ? "--c1" : "--c" + (at % 8 + 1);
  function columns(chart, numbers) {
    const steps = axis(chart, numbers);
    if (!chart.is_stacked) return [steps, ...chart.series.map((one) => one.values)];
    const sum = steps.map(() => 0);
    const isThere = steps.map((_, at) => chart.series.some((one) => one.values[at] != null));
    return [steps, ...chart.series.map((one) => one.values.map((value, at) => isThere[at] ? (sum[at] += value ?? 0) : null))];
  }
  // Of what is always 0 a chart is not to reach to 100.
  const reach = (plot, low, high) => low === 0 && high === 0 ? [0, 1] : uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true);
  // Where nobody points at a step the legend tells how things stand now.
  const last = (values) => values.findLast((value) => value != null);
  function options(chart, numbers, width) {
    const text = paint("--soft"), line = paint("--line"), steps = axis(chart, numbers);
    const series = chart.series.map((one, at) => {
      const hue = paint(color(one, at)), points = one.form === "points";
      return {
        label: one.name,
        stroke: one.form === "faint" ? faint(hue) : hue,
        width: points ? 0 : one.form === "strong" ? 2.2 : one.form === "faint" ? 1 : 1.4,
        fill: chart.is_stacked ? faint(hue) : undefined,
        spanGaps: true,
        points: { show: points || steps.length < 2, size: points ? 8 : 5, fill: hue },
        value: (plot, value, number, row) => short(row == null ? last(one.values) : one.values[row]),
      };
    });
    const bands = chart.is_stacked ? chart.series.slice(1).map((one, at) => ({ series: [at + 2, at + 1] })) : [];
    const look = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
    return {
      width, height: 190, series: [{ label: "step", value: (plot, value) => short(value ?? last(steps)) }, ...series], bands,
      cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: chart.is_share ? [0, 1.02] : chart.top == null ? reach : [0, chart.top] } },
      axes: [{ ...look, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...look, size: 48, values: (plot, ticks) => ticks.map(short) }],
      hooks: { draw: [(plot) => decorate(plot, chart, numbers)] },
    };
  }
  // Whiskers of scores, and a line where an alarm began.
  function decorate(plot, chart, numbers) {
    const pen = plot.ctx, top = plot.bbox.top, bottom = top + plot.bbox.height;
    pen.save();
    pen.lineWidth = devicePixelRatio;
    pen.strokeStyle = paint("--bad");
    pen.setLineDash([4, 4]);
    for (const step of Object.values(numbers.alarms).flat()) {
      const x = Math.round(plot.valToPos(step, "x", true));
      pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, bottom); pen.stroke();
    }
    pen.setLineDash([]);
    chart.series.forEach((one, number) => {
      if (!one.low.length) return;
      pen.strokeStyle = paint(color(one, number));
      pen.lineWidth = 1.6 * devicePixelRatio;
      one.low.forEach((low, at) => {
        if (low == null) return;
        const x = Math.round(plot.valToPos(axis(chart, numbers)[at], "x", true));
        pen.beginPath();
        pen.moveTo(x, plot.valToPos(low, "y", true));
        pen.lineTo(x, plot.valToPos(one.high[at], "y", true));
        pen.stroke();
      });
    });
    pen.restore();
  }
  function tabulate(rows, chart, numbers) {
    const table = document.createElement("table");
    const head = element("tr", "", element("thead", "", table));
    for (const name of ["step", ...chart.series.map((one) => one.name)]) element("th", name, head).scope = "col";
    const body = element("tbody", "", table);
    const steps = axis(chart, numbers);
    for (let at = steps.length - 1; at >= 0; at--) {
      const row = element("tr", "", body);
      for (const value of [steps[at], ...chart.series.map((one) => one.values[at])]) {
        element("td", short(value), row).className = "n";
      }
    }
    rows.replaceChildren(table);
  }

  document.addEventListener("htmx:afterSettle", () => { tag = ""; wait(POLL_MS); refresh(); });

  wait(POLL_MS);
  refresh();
})();
