"use strict";
// How far a job got: its stages by rank, and the steps of a few ranks up to their end.
const Progress = (() => {
  const ROW = 28, TOP = 8, BOTTOM = 38, MOST = 24, NARROW = 620, LETTER = 6.9;
  const SIGNS = { named: "✖", silent: "∅", failed: "!", unfinished: "…", done: "✓" };
  const loud = (state) => state === "named" || state === "silent";

  // The rows of a phase's table of ends, each with its ranks; empty if its job passed.
  function lanes(inside) {
    const phase = inside.closest(".phase"), table = phase && phase.querySelector('table[data-table="lanes"]');
    if (!table) return [];
    return Charts.rows(table).map((one, at) => {
      const [ranks, nodes, end, note] = [...table.tBodies[0].rows[at].cells].map((cell) => cell.textContent);
      return { ...one, at, ranks, nodes, end, note, numbers: Charts.numbers(ranks) };
    });
  }

  // Rank -> `named` or `silent`, for the other charts.
  function ends(inside) {
    return new Map(lanes(inside).filter((one) => loud(one.state)).flatMap((one) => one.numbers.map((rank) => [rank, one.state])));
  }

  // Rank -> its node, of ranks that ended on a node of their own; it may have written nothing.
  function homes(inside) {
    return new Map(lanes(inside).filter((one) => one.nodes && !one.nodes.includes(", ")).flatMap((one) => one.numbers.map((rank) => [rank, one.nodes])));
  }

  const FEW = 8;
  const title = (one) => (one.numbers.length > FEW ? `${one.numbers.length} ranks` : `rank${one.numbers.length > 1 ? "s" : ""} ${one.ranks}`);
  const cut = (words, most) => (words.length > most ? words.slice(0, Math.max(1, most - 1)) + "…" : words);

  function stages(figure, width) {
    const all = lanes(figure);
    if (!all.length) return null;
    const table = figure.querySelector('table[data-table="lanes"]');
    const over = table.dataset.ended === undefined ? null : Number(table.dataset.ended);
    const bars = Charts.rows(figure.querySelector('table[data-table="stages"]')).map((one) => bar(one, all[Number(one.lane)], over));
    for (const of of d3.group(bars, (one) => one.at).values()) of.forEach((one, at) => { one.odd = at % 2 === 1; });
    // In a narrow chart the names of the ranks stand above their bars.
    const above = width < NARROW, name = (one) => `${SIGNS[one.state]} ${title(one)} · ${one.nodes}`;
    const longest = d3.max(all, (one) => name(one).length) * LETTER + 16;
    const left = above ? 16 : Math.round(Math.min(longest, width * 0.34)), letters = Math.floor(((above ? width : left) - 10) / LETTER);
    const high = above ? ROW * 1.6 : ROW;
    const until = d3.max([over, ...all.map((one) => one.last), ...bars.map((one) => one.to)].filter(Charts.known)) || 1;
    const y = (one) => one.at, tone = (one) => (loud(one.state) ? "var(--bad)" : "var(--ink)");
    const scale = (width - left - 20) / (until * 1.02);
    const roomy = bars.filter((one) => (one.to - one.from) * scale > one.stage.length * 6.4 + 8);
    const svg = Charts.plot({
      width, height: high * all.length + TOP + BOTTOM, marginTop: TOP, marginBottom: BOTTOM, marginLeft: left, marginRight: 20,
      x: { label: "seconds", domain: [Math.min(0, d3.min(bars, (one) => one.from) || 0), until * 1.02], grid: true, ticks: Math.floor((width - left) / 70) },
      y: { type: "band", domain: all.map(y), axis: null, paddingInner: above ? 0.5 : 0.25, paddingOuter: above ? 0.4 : 0.15 },
      marks: [
        Plot.barX(bars.filter((one) => one.done), { y, x1: "from", x2: "to", fill: (one) => (one.odd ? "var(--accent-soft)" : "var(--none-bg)"), stroke: "var(--steel)" }),
        Plot.barX(bars.filter((one) => !one.done), { y, x1: "from", x2: "to", fill: (one) => (loud(one.state) ? "var(--bad-bg)" : "var(--warn-bg)"), stroke: (one) => (loud(one.state) ? "var(--bad)" : "var(--warn)"), strokeDasharray: "4 3", strokeWidth: 1.5 }),
        Plot.text(roomy, { y, x: (one) => (one.from + one.to) / 2, text: "stage", fill: "var(--ink)", fontSize: 11 }),
        Plot.ruleX(over === null ? [] : [over], { stroke: "var(--bad)", strokeDasharray: "2 3" }),
        Plot.text(all.filter((one) => Charts.known(one.last)), { y, x: "last", text: (one) => SIGNS[one.state], fill: tone, fontWeight: 700, fontSize: 13, dx: 7, stroke: "var(--bg)", strokeWidth: 3 }),
        Plot.text(all, { y, frameAnchor: "left", textAnchor: "start", dx: -left + 2, dy: above ? -high * 0.46 : 0, text: (one) => cut(name(one), letters), fill: tone, fontWeight: (one) => (loud(one.state) ? 700 : 400) }),
      ],
    }, said(all, until));
    const [x, row] = [svg.scale("x"), svg.scale("y")];
    const middle = (one) => row.apply(one.at) + row.bandwidth / 2;
    const points = all.flatMap((one) => {
      const mine = bars.filter((bar) => bar.at === one.at);
      return mine.length ? mine.map((bar) => ({ words: `${title(one)}: ${bar.words}`, left: x.apply(bar.from), right: x.apply(bar.to), x: x.apply((bar.from + bar.to) / 2), y: middle(one) }))
        : [{ words: `${title(one)}: ${one.end}; ${one.note}`, left: left, right: width - 20, x: left + 8, y: middle(one) }];
    });
    const box = document.createElement("div");
    box.append(svg);
    Charts.explore(box, svg, points, "Stages by rank", { now: Math.max(0, points.findIndex((_, at) => at === firstLoud(all, bars))), flat: false });
    return box;
  }

  // A bar of a stage that did not end lasts until its rank wrote last, or until the phase ended.
  function bar(one, lane, over) {
    const done = Charts.known(one.ended), last = loud(lane.state) ? lane.last : d3.max([lane.last, over].filter(Charts.known));
    const to = done ? one.ended : Math.max(one.begun, last);
    const when = (value) => `${Charts.show(value)} s`;
    const words = done ? `${one.stage}, ${when(one.begun)} to ${when(one.ended)}` : `${one.stage}, from ${when(one.begun)}, did not end; ${lane.end}${Charts.known(lane.step) ? `, last mark: step ${lane.step}` : ""}`;
    return { stage: one.stage, from: one.begun, to, done, words, at: lane.at, state: lane.state };
  }

  // The number of the first point of the first rank that is named or silent.
  function firstLoud(all, bars) {
    let at = 0;
    for (const one of all) {
      const mine = Math.max(1, bars.filter((bar) => bar.at === one.at).length);
      if (loud(one.state)) return at + mine - 1;
      at += mine;
    }
    return 0;
  }

  function said(all, until) {
    const named = all.filter((one) => loud(one.state)).map((one) => `${title(one)}: ${one.end}`);
    return `Stages of ${d3.sum(all, (one) => one.numbers.length)} ranks over ${Charts.show(until)} seconds. ${named.slice(0, MOST).join("; ") || "No rank is named"}.`;
  }

  // One figure of the marks, by step, a line for each rank.
  const track = (key, unit, name) => (figure, width) => {
    const table = figure.closest("section").querySelector('table[data-table="marks"]');
    const marks = Charts.rows(table).filter((one) => Charts.known(one[key]) || one[`${key}_word`]);
    const good = marks.filter((one) => Charts.known(one[key])), bad = marks.filter((one) => one[`${key}_word`]);
    if (!marks.length) return null;
    const state = ends(figure), [low, high] = d3.extent(good, (one) => one[key]);
    const log = key === "loss" && low > 0 && high / low > 30;
    const last = [...d3.rollup(marks, (of) => of[of.length - 1], (one) => one.rank).values()];
    const named = (one) => state.has(Number(one.rank)), tone = (one) => (named(one) ? "var(--bad)" : "var(--accent)");
    const dead = last.filter(named);
    const [from, to] = d3.extent(marks, (one) => one.step);
    const svg = Charts.plot({
      width, height: 240, marginLeft: 60,
      x: { label: "step", domain: from === to ? [from - 1, to + 1] : [from, to], ticks: Math.floor(width / 70), tickFormat: (v) => (Number.isInteger(v) ? d3.format(",")(v) : "") },
      y: { label: log ? `${name}, logarithmic` : name, grid: true, ...(log ? Charts.logarithmic(low, high) : { zero: key === "rate", nice: true, ticks: 5, tickFormat: Charts.brief(high) }), insetTop: dead.length ? 16 : 0 },
      marks: [
        Plot.line(good.filter((one) => !named(one)), { x: "step", y: key, z: "rank", stroke: "var(--accent)", strokeWidth: 1.75 }),
        Plot.line(good.filter(named), { x: "step", y: key, z: "rank", stroke: "var(--bad)", strokeWidth: 1.75, strokeDasharray: "5 4" }),
        Plot.dot(good.length <= 80 ? good : [], { x: "step", y: key, r: 2, fill: tone }),
        Plot.ruleX(bad, { x: "step", stroke: "var(--bad)", strokeDasharray: "3 3" }),
        Plot.ruleX(dead, { x: "step", stroke: "var(--bad)", strokeDasharray: "2 3" }),
        Plot.text(dead.slice(0, 1), { x: "step", frameAnchor: "top", textAnchor: "end", dx: -4, dy: -2, fill: "var(--bad)", fontWeight: 650, text: (one) => `✖ rank ${one.rank}${dead.length > 1 ? ` and ${dead.length - 1} more` : ""}: last mark, step ${d3.format(",")(one.step)}` }),
      ],
    }, `${name} by step of ${last.length === 1 ? "rank" : "ranks"} ${last.map((one) => one.rank).join(", ")}. ${last.map((one) => `Rank ${one.rank} marked step ${one.step} last${named(one) ? " and is named" : ""}`).join("; ")}.`);
    const words = (one) => `rank ${one.rank}, step ${d3.format(",")(one.step)}, ${Charts.show(one.at)} s: ${Charts.known(one[key]) ? Charts.show(one[key]) : one[`${key}_word`]}${unit}`;
    return Charts.told(svg, d3.sort(marks, (one) => one.step).map((one) => ({ x: one.step, y: Charts.known(one[key]) ? one[key] : undefined, words: words(one) })), `${name} by step, up to the end`);
  };

  return { ends, homes, kinds: { lanes: stages, track_loss: track("loss", "", "loss"), track_rate: track("rate", " steps/s", "steps/s") } };
})();
