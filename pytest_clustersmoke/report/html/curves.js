"use strict";
// The curves of collectives: bus bandwidth and time by message size, tonight and in the past.
const Curves = (() => {
  const GAP = 32, LEAST = 270, HEIGHT = 196, BOTTOM = 34, LEFT = 52;
  const FIGURES = [
    { key: "busbw", of: "busbw_gb_per_s", title: "bus bandwidth", unit: "GB/s", factor: 1 },
    { key: "seconds", of: "seconds", title: "time of a call", unit: "µs", factor: 1e6 },
  ];

  function bytes(count) {
    const at = Math.min(3, Math.floor(Math.log2(Math.max(1, count)) / 10));
    return `${Number((count / 1024 ** at).toPrecision(4))} ${["B", "KiB", "MiB", "GiB"][at]}`;
  }
  const brief = d3.format(",.3~r");
  const time = (us) => (us >= 1e6 ? `${brief(us / 1e6)} s` : us >= 1e3 ? `${brief(us / 1e3)} ms` : `${brief(us)} µs`);

  function draw(figure, width) {
    const points = Charts.rows(figure.querySelector('table[data-table="curves"]'));
    const bounds = Charts.rows(figure.querySelector('table[data-table="curve-bounds"]'));
    const count = Math.max(1, Math.floor((width + GAP) / (Math.min(width, LEAST) + GAP)));
    const each = Math.floor((width - GAP * (count - 1)) / count);
    return FIGURES.map((kind) => {
      const row = document.createElement("div");
      row.className = "row";
      for (const [name, of] of d3.group(points, (one) => one.collective)) {
        row.append(curve(name, kind, of, bounds.filter((one) => one.collective === name && one.figure === kind.of), each));
      }
      return row;
    });
  }

  // Sizes that have a tick: the largest, and others evenly apart.
  function ticks(sizes, room) {
    const every = Math.ceil(sizes.length / Math.max(2, Math.floor(room / 52)));
    return sizes.filter((_, at) => (sizes.length - 1 - at) % every === 0);
  }

  function curve(name, kind, rows, bounds, width) {
    const { key, unit, factor } = kind, slow = key === "seconds";
    const points = d3.sort(rows, (one) => one.asked).map((one) => ({
      size: one.asked, value: one[key] * factor, runs: one.runs,
      low: scaled(one[`${key}_lowest`], factor), median: scaled(one[`${key}_median`], factor), high: scaled(one[`${key}_highest`], factor),
    }));
    const past = points.filter((one) => Charts.known(one.median));
    // A reference is in its metric's unit, which is that of the chart.
    const there = bounds.filter((one) => one.size !== undefined).map((one) => ({ ...one, size: Number(one.size) }));
    const best = bounds.filter((one) => one.size === undefined);
    const off = bounds.some((one) => one.met === "no");
    const tone = (one) => (one.met === "no" ? "var(--bad)" : "var(--good)");
    const seen = [...points.flatMap((one) => [one.value, one.low, one.high]), ...bounds.flatMap((one) => [one.reference, one.low, one.high])].filter((value) => Charts.known(value) && value > 0);
    const [least, most] = d3.extent(seen);
    const y = slow ? Charts.logarithmic(least, most, time) : { domain: [0, most * 1.08], ticks: 4 };
    const limit = (one, end, other) => (Charts.known(one[end]) ? one[end] : other);
    const sizes = points.map((one) => one.size), [from, to] = d3.extent(sizes);
    const svg = Charts.plot({
      width, height: HEIGHT, marginTop: 12, marginBottom: BOTTOM, marginLeft: LEFT, marginRight: best.length ? 30 : 22,
      x: { type: "log", base: 2, domain: from === to ? [from / 2, to * 2] : [from, to], label: null, ticks: ticks(sizes, width - LEFT - 22), tickFormat: bytes },
      y: { label: null, grid: true, ...y },
      marks: [
        Plot.areaY(past, { x: "size", y1: "low", y2: "high", fill: "var(--steel)", fillOpacity: 0.28 }),
        Plot.line(past, { x: "size", y: "median", stroke: "var(--steel)", strokeWidth: 1.5, strokeDasharray: "4 3" }),
        Plot.ruleY(best, { y: "reference", stroke: tone }),
        Plot.text(best, { y: "reference", text: () => "ref", frameAnchor: "right", textAnchor: "start", dx: 4, fontSize: 10, fill: tone }),
        Plot.ruleX(there, { x: "size", y1: (one) => limit(one, "low", y.domain[0]), y2: (one) => limit(one, "high", y.domain[1]), stroke: tone, strokeWidth: 2 }),
        Plot.dot(there, { x: "size", y: "reference", symbol: "diamond", r: 5, stroke: tone, fill: "var(--bg)", strokeWidth: 1.5 }),
        Plot.line(points, { x: "size", y: "value", stroke: "var(--accent)", strokeWidth: 1.75 }),
        Plot.dot(points, { x: "size", y: "value", r: 2.5, fill: "var(--accent)" }),
      ],
    }, label(name, kind, points, past, off));
    return titled(name, kind, svg, points, bounds, off);
  }
  const scaled = (value, factor) => (Charts.known(value) && value !== undefined ? value * factor : null);

  function label(name, { title, unit }, points, past, off) {
    const last = points[points.length - 1], runs = d3.max(past, (one) => one.runs);
    return `${name}, ${title} at ${points.length} sizes; at ${bytes(last.size)}: ${Charts.show(last.value)} ${unit}. `
      + (runs ? `Past: ${runs} runs.` : "No past.") + (off ? " Outside its reference." : "");
  }

  function titled(name, { key, title, unit }, svg, points, bounds, off) {
    const made = document.createElement("div"), head = document.createElement("p"), small = document.createElement("span");
    made.className = off ? "small off" : "small";
    made.dataset.curve = `${name} ${key}`;
    small.textContent = key === "seconds" ? ` ${title}` : ` ${title}, ${unit}`;
    head.append(off ? "⚠ " : "", name, small);
    made.append(head, svg);
    const [x, y] = [svg.scale("x"), svg.scale("y")];
    const words = (one) => {
      const said = [`${bytes(one.size)}: ${Charts.show(one.value)} ${unit}`];
      if (Charts.known(one.median)) said.push(`past ${Charts.show(one.median)}, ${d3.format("+.1%")(one.value / one.median - 1)}, ${one.runs} run${one.runs > 1 ? "s" : ""}`);
      for (const bound of bounds) if (Number(bound.size) === one.size) said.push(`reference ${Charts.show(bound.reference)}`);
      return said.join("; ");
    };
    Charts.explore(made, svg, points.map((one) => ({ words: words(one), x: x.apply(one.size), y: y.apply(one.value) })), `${name}, ${title} by message size`);
    return made;
  }

  return { draw };
})();
