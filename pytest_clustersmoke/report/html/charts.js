"use strict";
// Charts of index.html, drawn with Observable Plot from the tables beside them.
const Charts = (() => {
  const MANY = 64; // with more ranks there is no room for two boxes side by side
  const TOP = 28; // above the plot, in pixels
  const TONES = { good: "var(--good)", bad: "var(--bad)", warn: "var(--warn)" };

  // The rows of a table: their data- attributes, and the numbers of columns with a data-key.
  function rows(table) {
    if (!table) return [];
    const keys = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.key);
    const rounded = table.dataset.rounded !== undefined; // its figures are only in its text
    return [...table.tBodies[0].rows].map((row) => {
      const made = { ...row.dataset };
      keys.forEach((key, at) => {
        if (!key) return;
        let text = row.cells[at].dataset.value;
        for (const word of ["note", "poor", "other"]) if (row.cells[at].dataset[word]) made[`${key}_${word}`] = row.cells[at].dataset[word];
        if (text === undefined && rounded) text = row.cells[at].textContent.trim().replaceAll(",", "");
        if (rounded && (text === "-" || text === "")) text = undefined;
        made[key] = text === undefined ? null : Number(text);
        if (text !== undefined && !Number.isFinite(made[key])) made[key + "_word"] = text;
      });
      return made;
    });
  }

  const near = (figure, name) => {
    const place = figure.closest("section") || figure;
    return place.querySelector(`table[data-table="${name}"]`);
  };
  const known = (value) => Number.isFinite(value);

  // The format of the ticks of an axis: 200k where the digits of its numbers would not fit.
  const brief = (most) => (most >= 1e5 ? d3.format("~s") : undefined);

  function plot(options, words) {
    const svg = Plot.plot({
      style: { fontSize: "12px", fontFamily: "inherit", background: "transparent", color: "inherit" },
      marginTop: TOP, marginRight: 12, marginBottom: 34, marginLeft: 48,
      ...options,
    });
    // Plot labels its marks for screen readers; a picture with its own label must not have those.
    for (const part of svg.querySelectorAll("[aria-label]")) {
      part.dataset.mark = part.getAttribute("aria-label");
      part.removeAttribute("aria-label");
    }
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", words);
    return svg;
  }

  // The numbers in `0-7, 9`.
  function numbers(words) {
    return words.split(", ").filter(Boolean).flatMap((part) => {
      const [first, last = first] = part.split("-").map(Number);
      return d3.range(first, last + 1);
    });
  }

  // With many ranks the page has a row for each node, and rows for ranks that stand out.
  function byNode(figure) {
    const table = near(figure, "nodes-ranks");
    if (!table) return null;
    const words = [...table.tBodies[0].rows].map((row) => [...row.cells].slice(0, 4).map((cell) => cell.textContent.trim()));
    return rows(table).map((one, at) => ({ ...one, at, node: words[at][0], ranks: numbers(words[at][1]), undone: numbers(words[at][2]), slow: numbers(words[at][3]) }));
  }

  function steps(figure, width) {
    const nodes = byNode(figure), listed = rows(near(figure, "ranks")).filter((one) => known(one.step_p50));
    const ranks = nodes ? nodes.filter((one) => known(one.step_p50)) : listed;
    if (!ranks.length) return null;
    if (!nodes) for (const one of ranks) one.at = Number(one.rank);
    const slow = nodes ? listed.filter((one) => one.behind).map((one) => ({ ...one, at: nodes.findIndex((node) => node.place === one.place) })) : listed.filter((one) => one.behind);
    const own = ranks.filter((one) => known(one.own_p50));
    const room = (width - 64) / ranks.length;
    const beside = own.length && ranks.length <= MANY;
    const thick = Math.max(1, Math.min(16, room * (beside ? 0.3 : 0.6)));
    const shift = beside ? thick * 0.7 : 0;
    const ms = (key) => (one) => one[key] * 1e3;
    const boxes = (data, name, colour, dx, wide = thick) => [
      Plot.ruleX(data, { x: "at", y1: ms(name + "_p5"), y2: ms(name + "_p95"), stroke: colour, dx }),
      Plot.ruleX(data, { x: "at", y1: ms(name + "_p25"), y2: ms(name + "_p75"), stroke: colour, strokeWidth: wide, dx }),
      Plot.dot(data, { x: "at", y: ms(name + "_p50"), r: thick < 4 ? 0.75 : 1.8, fill: "var(--ink)", dx }),
    ];
    const behind = nodes ? nodes.flatMap((one) => one.slow) : slow.map((one) => one.rank);
    const named = slow.slice(0, 6);
    const top = (one) => Math.max(one.step_p95, one.own_p95 || 0) * 1e3;
    const ended = gone(figure, nodes, ranks);
    const svg = plot({
      width, height: 240,
      x: { domain: ended.domain, label: nodes ? "node rank" : "rank", ticks: Math.min(ranks.length, Math.floor(width / 45)), tickFormat: place(nodes) },
      y: { label: "ms per step", grid: true, zero: true, nice: true, insetTop: behind.length ? 14 : 0 },
      marks: [
        Plot.ruleY([0], { stroke: "var(--line)" }),
        ...boxes(ranks, "step", "var(--steel)", -shift),
        ...boxes(own.filter((one) => !one.behind), "own", "var(--accent)", shift),
        ...boxes(slow.filter((one) => known(one.own_p50)), "own", "var(--warn)", shift, Math.max(thick, 4)),
        ...ended.marks,
        Plot.text(named, { x: "at", y: top, text: (one) => `▲ rank ${one.rank} is behind`, dy: -10, fill: "var(--warn)", fontWeight: 650, textAnchor: "middle" }),
      ],
    }, `Step time by ${nodes ? "node" : "rank"}, ${ranks.length} ${nodes ? "nodes" : "ranks"}. ` + (behind.length ? `Behind: ${behind.join(", ")}.` : "No rank is behind."));
    inside(svg, width);
    const who = (one) => (nodes ? one.node : `rank ${one.rank}`);
    const own_ = (one) => (known(one.own_p50) ? `, ${show(ms("own_p50")(one))} ms of it its own` : "");
    const late = (one) => (!nodes ? (one.behind ? ", behind" : "") : one.slow.length ? `, behind: rank ${one.slow.join(", ")}` : "");
    return told(svg, ranks.map((one) => ({ x: one.at, y: ms("step_p50")(one), words: `${who(one)}: ${show(ms("step_p50")(one))} ms per step${own_(one)}${late(one)}` })), `Step time by ${nodes ? "node" : "rank"}`);
  }

  // Marks where ranks stand that a finding names, or that wrote nothing, whether they have a figure or not.
  function gone(figure, nodes, ranks) {
    const named = [...Progress.ends(figure)].map(([rank]) => ({ rank, at: nodes ? nodes.findIndex((one) => one.ranks.includes(rank)) : rank })).filter((one) => one.at >= 0);
    const words = named.length > 1 ? `✖ rank ${named[0].rank}…` : named.length ? `✖ rank ${named[0].rank}` : "";
    const domain = d3.extent([...ranks.map((one) => one.at), ...named.map((one) => one.at)]);
    return {
      domain: [domain[0] - 0.5, domain[1] + 0.5],
      marks: [
        Plot.ruleX(named, { x: "at", stroke: "var(--bad)", strokeDasharray: "2 3" }),
        Plot.text(named.slice(0, 1), { x: "at", text: () => words, frameAnchor: "top", dy: -6, fill: "var(--bad)", fontWeight: 650 }),
      ],
    };
  }

  const place = (nodes) => (v) => (!Number.isInteger(v) ? "" : nodes ? (nodes[v] && nodes[v].place) || "" : String(v));

  // Move labels near the left or right edge into the picture.
  function inside(svg, width) {
    svg.style.visibility = "hidden";
    document.body.append(svg);
    for (const text of svg.querySelectorAll("g[data-mark=text] text")) {
      const box = text.getBoundingClientRect(), frame = svg.getBoundingClientRect();
      const over = Math.max(0, box.right - frame.left - width + 4) - Math.max(0, 4 - (box.left - frame.left));
      if (over) text.setAttribute("dx", String(-over));
    }
    svg.remove();
    svg.style.visibility = "";
  }

  function memory(figure, width) {
    const nodes = byNode(figure);
    const ranks = (nodes || rows(near(figure, "ranks")).map((one) => ({ ...one, at: Number(one.rank) }))).filter((one) => known(one.memory));
    if (!ranks.length) return null;
    const thick = Math.max(1, Math.min(18, ((width - 64) / ranks.length) * 0.6));
    const ended = gone(figure, nodes, ranks);
    const svg = plot({
      width, height: 240,
      x: { domain: ended.domain, label: nodes ? "node rank" : "rank", ticks: Math.min(ranks.length, Math.floor(width / 45)), tickFormat: place(nodes) },
      y: { label: "GiB", grid: true, zero: true, nice: true },
      marks: [
        Plot.ruleX(ranks, { x: "at", y1: 0, y2: "memory", stroke: "var(--accent)", strokeOpacity: 0.75, strokeWidth: thick }),
        Plot.ruleY([0], { stroke: "var(--steel)" }),
        ...ended.marks,
      ],
    }, `Peak memory by ${nodes ? "node" : "rank"}, from ${d3.min(ranks, (r) => r.memory)} to ${d3.max(ranks, (r) => r.memory)} GiB.`);
    inside(svg, width);
    return told(svg, ranks.map((one) => ({ x: one.at, y: one.memory, words: `${nodes ? one.node : `rank ${one.rank}`}: ${show(one.memory)} GiB` })), `Peak memory by ${nodes ? "node" : "rank"}`);
  }

  function loss(figure, width) {
    const points = rows(near(figure, "loss"));
    const good = points.filter((one) => known(one.loss));
    const bad = points.filter((one) => one.loss_word);
    if (!points.length) return null;
    const [low, high] = d3.extent(good, (one) => one.loss);
    const log = low > 0 && high / low > 30;
    const marks = [
      Plot.line(points.map((one) => ({ ...one, loss: known(one.loss) ? one.loss : NaN })), { x: "step", y: "loss", stroke: "var(--accent)", strokeWidth: 1.75 }),
      Plot.ruleX(bad, { x: "step", stroke: "var(--bad)", strokeDasharray: "3 3" }),
      Plot.text(bad.slice(0, 1), { x: "step", text: "loss_word", frameAnchor: "top", fill: "var(--bad)", fontWeight: 650, dx: 4, textAnchor: "start" }),
    ];
    if (good.length <= 40) marks.push(Plot.dot(good, { x: "step", y: "loss", r: 2, fill: "var(--accent)" }));
    const svg = plot({
      width, height: 240,
      x: { label: "step", domain: d3.extent(points, (one) => one.step), ticks: Math.floor(width / 60), tickFormat: (v) => (Number.isInteger(v) ? String(v) : "") },
      y: { label: log ? "loss, logarithmic" : "loss", grid: true, ...(log ? logarithmic(low, high) : { nice: true, ticks: 5 }) },
      marks,
    }, `Loss over ${points.length} steps` + (good.length ? `, from ${good[0].loss} to ${good[good.length - 1].loss}.` : ".") + (bad.length ? ` Not a number from step ${bad[0].step} on.` : ""));
    inside(svg, width);
    return told(svg, points.filter((one) => known(one.loss) || one.loss_word).map((one) => (known(one.loss) ? { x: one.step, y: one.loss, words: `step ${one.step}: loss ${show(one.loss)}` } : { x: one.step, words: `step ${one.step}: loss ${one.loss_word}, not a number` })), "Loss by step");
  }

  function timeline(figure, width) {
    const phases = rows(figure.querySelector("table")).filter((one) => known(one.submitted));
    if (!phases.length) return null;
    // The wait ends at the start and lasts as long as the scheduler says, perhaps in whole seconds.
    const queued = (one) => (known(one.started) && known(one.queue_s) ? one.started - one.queue_s : one.submitted);
    const first = d3.min(phases, queued);
    const since = (moment) => moment - first;
    const ran = phases.filter((one) => known(one.started) && known(one.ended));
    const waited = phases.map((one) => ({ ...one, until: known(one.started) ? one.started : known(one.ended) ? one.ended : one.submitted + (one.queue_s || 0) }));
    const seconds = (value) => (known(value) ? value.toFixed(1) : "-");
    const times = new Map(phases.map((one) => [one.label, `queue ${seconds(one.queue_s)} s, run ${seconds(one.run_s)} s`]));
    const left = Math.min(190, Math.max(150, width * 0.18));
    const short = (name) => (name.length > 24 ? name.slice(0, 23) + "…" : name);
    return plot({
      width, height: 44 * phases.length + 52, marginLeft: left, marginTop: 4,
      x: { label: "seconds", grid: true, nice: true, ticks: Math.floor((width - left) / 70) },
      y: { domain: phases.map((one) => one.label), label: null, padding: 0.45, axis: null },
      marks: [
        Plot.barX(waited, { y: "label", x1: (one) => since(queued(one)), x2: (one) => since(one.until), fill: "var(--none-bg)", stroke: "var(--steel)", strokeDasharray: "3 2" }),
        Plot.barX(ran, { y: "label", x1: (one) => since(one.started), x2: (one) => since(one.ended), fill: (one) => one.tone, fillOpacity: 0.8 }),
        Plot.text(phases, { y: "label", text: (one) => short(one.label), frameAnchor: "left", textAnchor: "start", dx: -left + 2, dy: -7, fontWeight: 600 }),
        Plot.text(phases, { y: "label", text: (one) => times.get(one.label), frameAnchor: "left", textAnchor: "start", dx: -left + 2, dy: 8, fill: "var(--muted)", fontSize: 11 }),
      ],
      color: { domain: ["good", "bad", "warn", "none"], range: [TONES.good, TONES.bad, TONES.warn, "var(--steel)"] },
    }, "Queue and run time of all phases. " + phases.map((one) => `${one.label}: ${times.get(one.label)}`).join("; "));
  }

  // One small chart for each metric with past runs.
  function trends(figure, width) {
    const table = figure.querySelector("table");
    const all = rows(table);
    all.forEach((one, row) => {
      one.when = new Date((Number(one.begun) + Number(one.offset)) * 1e3); // local, shown as if it were UTC
      one.cells = table.tBodies[0].rows[row].cells;
    });
    const heads = [...table.tHead.rows[0].cells].filter((cell) => cell.dataset.key);
    const runs = all.slice(-Number(figure.dataset.last || 0)); // the reader's choice, of all trends
    const has = (some, least) => (head) => some.filter((one) => known(one[head.dataset.key])).length >= least;
    const drawn = heads.filter(has(all, 2)).filter(has(runs, 1));
    const span = d3.extent(runs, (one) => one.when); // the same for all, so that they can be compared
    const gap = 32, least = Math.min(width, 270);
    const count = Math.max(1, Math.floor((width + gap) / (least + gap)));
    const each = Math.floor((width - gap * (count - 1)) / count);
    return drawn.map((head) => trend(head, runs, each, span));
  }

  // Ticks of a time axis that fit into a width: days, or times on a 24-hour clock.
  function times([from, to], room) {
    const hours = (to - from) / 3.6e6;
    const [format, wide, whole] = hours > 24 * 300 ? ["%b %Y", 62, d3.utcMonth] : hours > 36 ? ["%-d %b", 52, d3.utcDay]
      : hours > 0.1 ? ["%H:%M", 44, d3.utcMinute] : ["%H:%M:%S", 62, d3.utcSecond];
    const words = d3.utcFormat(format), fits = Math.floor(room / wide);
    if (whole === d3.utcDay) return { ticks: days(from, to, Math.max(1, fits)), tickFormat: words };
    for (let count = fits; count > 0; count--) {
      const ticks = d3.utcTicks(from, to, count).filter((at) => +whole(at) === +at);
      const apart = ticks.length > 1 ? ((ticks[1] - ticks[0]) / (to - from)) * room : wide;
      if (ticks.length && apart >= wide) return { ticks, tickFormat: words };
    }
    return { ticks: [to], tickFormat: words };
  }

  // Midnights, evenly apart, of which so many fit; the newest is one of them.
  function days(from, to, fits) {
    const all = d3.utcDays(d3.utcDay.ceil(from), new Date(+to + 1));
    if (!all.length) return [to];
    const apart = [1, 2, 3, 5, 7, 10, 14, 21, 28, 42, 56, 91, 182, 365].find((step) => Math.ceil(all.length / step) <= fits) || all.length;
    return all.reverse().filter((_, at) => at % apart === 0).reverse();
  }

  // Ticks of a logarithmic axis that all have a label: 1, 2 and 5 of each decade, or as many powers of
  // ten as fit; over less than a decade even ones.
  function decades([low, high], most = 5) {
    const powers = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
    const inside = (ticks) => ticks.filter((tick) => tick >= low && tick <= high);
    for (const of of [[1, 2, 5], [1, 3], [1]]) {
      const ticks = inside(powers.flatMap((power) => of.map((digit) => Number(`${digit}e${power}`))));
      if (ticks.length <= most && ticks.length > 1) return ticks;
    }
    const tens = inside(powers.map((power) => Number(`1e${power}`)));
    if (tens.length < 2) return inside(d3.ticks(low, high, most));
    return tens.filter((_, at) => (tens.length - 1 - at) % Math.ceil(tens.length / most) === 0);
  }

  // Labels at the right of a chart, moved apart where their lines are close.
  function sides(labels, domain, height) {
    let below = -Infinity;
    return labels.sort((one, other) => other[1] - one[1]).map(([word, value, fill]) => {
      below = Math.max(below + 10, ((domain[1] - value) / (domain[1] - domain[0])) * height);
      return Plot.text([word], { frameAnchor: "top-right", textAnchor: "start", lineAnchor: "middle", dx: 4, dy: below, fontSize: 10, fill });
    });
  }

  const show = d3.format(",.4r");

  // How far a point is from x; one that stands for a bar has its two ends.
  const beside = (one, x) => (one.right === undefined ? one.x - x : Math.max(0, one.left - x, x - one.right));

  let described = 0; // charts whose label describes their slider

  // Makes a chart tell its values, one at a time: under the pointer, and with the arrow keys.
  // They begin with the point `now`; `flat`: the pointer chooses by its place along the x axis alone.
  function explore(place, svg, points, name, { now = points.length - 1, flat = true } = {}) {
    if (!points.length) return;
    const tip = document.createElement("p"), ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    tip.className = "tip";
    tip.hidden = true;
    tip.setAttribute("aria-hidden", "true"); // a screen reader says the value of the slider
    ring.setAttribute("class", "ring");
    ring.setAttribute("r", "6");
    ring.setAttribute("visibility", "hidden");
    svg.append(ring);
    place.append(tip);
    place.classList.add("explore");
    place.tabIndex = 0;
    for (const [key, value] of [["role", "slider"], ["aria-label", name], ["aria-valuemin", 1], ["aria-valuemax", points.length]]) place.setAttribute(key, value);
    if (svg.hasAttribute("aria-label")) { // a slider hides what is in it
      svg.id ||= `chart-${++described}`;
      place.setAttribute("aria-describedby", svg.id);
    }
    const tell = () => {
      place.setAttribute("aria-valuenow", now + 1);
      place.setAttribute("aria-valuetext", points[now].words);
    };
    const scale = () => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width || 1;
    function pick(to) {
      now = Math.min(points.length - 1, Math.max(0, to));
      const { x, y, words } = points[now];
      ring.setAttribute("cx", x);
      ring.setAttribute("cy", y);
      ring.setAttribute("visibility", "visible");
      tip.textContent = words;
      tip.hidden = false;
      tip.style.left = "0px";
      const room = place.clientWidth - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, x * scale() - tip.offsetWidth / 2))}px`;
      const over = svg.offsetTop || svg.getBoundingClientRect().top - place.getBoundingClientRect().top;
      const above = over + y * scale() - tip.offsetHeight - 12;
      tip.style.top = `${above >= 0 ? above : over + y * scale() + 12}px`;
      tell();
    }
    function hide() {
      tip.hidden = true;
      ring.setAttribute("visibility", "hidden");
    }
    place.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect(), [x, y] = [(event.clientX - frame.left) / scale(), (event.clientY - frame.top) / scale()];
      pick(d3.minIndex(points, (one) => (flat ? Math.abs(one.x - x) : Math.hypot(beside(one, x), one.y - y))));
    });
    place.addEventListener("pointerleave", hide);
    place.addEventListener("focus", () => pick(now));
    place.addEventListener("blur", hide);
    place.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, Home: 0, End: points.length - 1 }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined) return;
      event.preventDefault();
      pick(to);
    });
    tell();
  }

  // A chart in a box of its own, which tells its values. A point without y is at its top.
  function told(svg, points, name) {
    const box = document.createElement("div");
    box.append(svg);
    const [x, y] = [svg.scale("x"), svg.scale("y")];
    explore(box, svg, points.map((one) => ({ words: one.words, x: x.apply(one.x), y: one.y === undefined ? TOP : y.apply(one.y) })), name);
    return box;
  }

  function trend(head, runs, width, span) {
    const { key, unit, status, met } = head.dataset;
    const of = (name) => (head.dataset[name] === undefined ? null : Number(head.dataset[name]));
    const points = runs.filter((one) => known(one[key])).map((one) => ({ ...one, good: one.good && !one[key + "_poor"], same: one.same && !one[key + "_other"] }));
    const poor = (one) => one[key + "_poor"]; // of the newest run only the page over runs says so
    const past = points.filter((one) => !one.now);
    const kind = (test) => past.filter(test);
    const lines = [["warn", of("warn")], ["fail", of("fail")]].filter(([, value]) => known(value));
    const low = of("low"), high = of("high"), reference = of("reference");
    const seen = [...points.map((one) => one[key]), ...[low, high, reference, of("warn"), of("fail")].filter(known)];
    const [least, most] = d3.extent(seen);
    const pad = (most - least) * 0.12 || Math.abs(most) * 0.05 || 1;
    const domain = [least > 0 ? Math.max(least - pad, least / 2) : least - pad, most + pad];
    const band = known(low) || known(high) ? [{ y1: known(low) ? low : domain[0], y2: known(high) ? high : domain[1] }] : [];
    const labels = [...lines.map(([word, value]) => [word, value, "var(--bad)"]), ...(known(reference) ? [["ref", reference, "var(--good)"]] : [])];
    const off = met === "no" || status === "fail";
    const svg = plot({
      width, height: 156, marginTop: 8, marginBottom: 34, marginLeft: 60, marginRight: labels.length ? 30 : 22,
      x: { type: "utc", label: null, domain: span, ...times(span, width - 82 - 8 * (labels.length > 0)) },
      y: { domain, label: null, grid: true, ticks: 4, tickFormat: brief(most) },
      marks: [
        Plot.rectY(band, { x1: span[0], x2: span[1], y1: "y1", y2: "y2", fill: "var(--band)" }),
        Plot.ruleX(points.filter((one) => one[key + "_note"]), { x: "when", stroke: "var(--warn)", strokeDasharray: "2 3" }),
        Plot.ruleY(known(reference) ? [reference] : [], { stroke: "var(--good)" }),
        Plot.ruleY(lines, { y: (one) => one[1], stroke: "var(--bad)", strokeDasharray: "2 3" }),
        ...sides(labels, domain, 156 - 8 - 34),
        Plot.line(points.filter((one) => one.same && (one.good || (one.now && !poor(one)))), { x: "when", y: key, stroke: "var(--steel)" }),
        Plot.dot(kind((one) => one.same && one.good), { x: "when", y: key, r: 2.5, fill: "var(--steel)" }),
        Plot.dot(kind((one) => !one.same && one.good), { x: "when", y: key, r: 3, stroke: "var(--steel)", fill: "var(--bg)" }),
        Plot.dot(kind((one) => !one.good), { x: "when", y: key, r: 3, symbol: "times", stroke: "var(--bad)" }),
        Plot.dot(points.filter((one) => one.now && poor(one)), { x: "when", y: key, r: 5, symbol: "times", stroke: "var(--bad)", strokeWidth: 2 }),
        Plot.dot(points.filter((one) => one.now && !poor(one)), { x: "when", y: key, r: 5, symbol: "diamond", fill: off ? "var(--bad)" : "var(--accent)", stroke: "var(--bg)" }),
      ],
    }, `${key} over ${past.length} past runs` + (off ? ", outside its bounds now." : "."));
    const made = document.createElement("div");
    made.className = off ? "small off" : "small";
    made.dataset.metric = key;
    const title = document.createElement("p");
    const small = document.createElement("span");
    small.textContent = unit === "1" ? "" : ` ${unit}`;
    title.append(off ? "⚠ " : "", key, small);
    made.append(title, svg);
    const [x, y] = [svg.scale("x"), svg.scale("y")];
    const words = (one) => [`${one.cells[1].textContent}: ${one.cells[head.cellIndex].textContent}${unit === "1" ? "" : ` ${unit}`}`, one.cells[0].textContent, one.good || (one.now && !poor(one)) ? "" : "not good", one[key + "_note"] ? `changed: ${one[key + "_note"]}` : ""].filter(Boolean).join("; ");
    explore(made, svg, points.map((one) => ({ words: words(one), x: x.apply(one.when), y: y.apply(one[key]) })), `${key}, run by run`);
    return made;
  }

  // The options of a logarithmic axis, with a little room beside the values.
  function logarithmic(low, high, tickFormat = d3.format("~g")) {
    const room = (high / low) ** 0.04, domain = [low / room, high * room];
    return { type: "log", domain, ticks: decades(domain), tickFormat };
  }

  return { rows, byNode, near, known, numbers, brief, plot, told, show, explore, logarithmic, kinds: { steps, memory, loss, timeline, trends } };
})();
