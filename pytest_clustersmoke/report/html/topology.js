"use strict";
// The topology: nodes as boxes with their ranks, and links between ranks. Many nodes become a grid
// of boxes, and their links a matrix of pairs.
const Topology = (() => {
  const FEW_NODES = 12, FEW_RANKS = 96, FEW_LINES = 40, FEW_LABELS = 10;
  const CELL = 36, GPU_W = 30, GPU_H = 24, GAP = 8;

  function read(figure) {
    const phase = figure.closest(".phase");
    const by = Charts.byNode(phase), at = (one) => (one.place === undefined ? null : Number(one.place));
    const ranks = by ? by.flatMap((one) => one.ranks.map((rank) => ({
      rank, place: at(one), behind: one.slow.includes(rank), done: !one.undone.includes(rank),
    }))) : Charts.rows(phase.querySelector('table[data-table="ranks"]')).map((one) => ({
      rank: Number(one.rank), place: at(one), behind: !!one.behind, done: !!one.done,
    }));
    const ends = Progress.ends(figure);
    for (const one of ranks) one.end = ends.get(one.rank);
    const names = new Map([...figure.querySelectorAll('table[data-table="places"] tbody tr')].map((row) => [Number(row.dataset.place), row.dataset.label]));
    const homes = Progress.homes(figure), placed = new Map([...names].map(([place, name]) => [name, place]));
    for (const one of ranks) one.place ??= placed.get(homes.get(one.rank)) ?? null;
    const groups = Charts.rows(figure.querySelector('table[data-table="groups"]'));
    const kinds = [...figure.querySelectorAll('table[data-table="groups"] tbody tr')].map((row) => row.cells[1].textContent);
    groups.forEach((one, at) => { one.kind = kinds[at]; one.one = Number(one.one); one.other = Number(one.other); });
    for (const row of figure.querySelectorAll('table[data-table="group-bundles"] tbody tr')) {
      const [, kind, links, unexpected, pairs] = [...row.cells].map((cell) => cell.textContent);
      for (const pair of pairs.split(", ")) {
        const [other, gbs] = pair.split(": "), bandwidth = gbs === "-" ? null : Number(gbs.replaceAll(",", ""));
        groups.push({ one: Number(row.dataset.one), other: Number(other), kind, links: Number(links), unexpected: Number(unexpected), bandwidth });
      }
    }
    groups.sort((x, y) => x.one - y.one || x.other - y.other); // the table has the worst first
    const links = Charts.rows(figure.querySelector('table[data-table="links"]')).map((one) => ({
      source: one.source, destination: one.destination, kind: one.kind, wrong: !!one.unexpected, inside: !!one.inside,
    }));
    for (const one of groups) for (const end of [one.one, one.other]) if (!names.has(end)) names.set(end, `node ${end}`);
    const nodes = [...names].sort((a, b) => a[0] - b[0]).map(([place, name]) => ({
      place, name, ranks: ranks.filter((one) => one.place === place).sort((a, b) => a.rank - b.rank),
      inside: groups.filter((one) => one.one === place && one.other === place),
    }));
    const wrong = new Set(links.filter((one) => one.wrong).flatMap((one) => [one.source, one.destination]));
    for (const row of figure.querySelectorAll('table[data-table="bundles"] tbody tr')) {
      for (const end of row.cells[4].textContent.match(/\d+/g) || []) wrong.add(Number(end));
    }
    return { nodes, groups: groups.filter((one) => one.one !== one.other), links, wrong, count: ranks.length };
  }

  function draw(figure, width) {
    const data = read(figure);
    if (!data.nodes.length) return null;
    const few = data.nodes.length <= FEW_NODES && data.count <= FEW_RANKS;
    const [first, left] = few ? picture(data, width) : [grid(data, width), 0];
    const drawn = [first];
    if (data.groups.length && (!few || data.groups.length > FEW_LABELS)) drawn.push(matrix(data, width));
    const bad = data.groups.filter((one) => one.unexpected).concat(data.nodes.flatMap((one) => one.inside.filter((g) => g.unexpected)));
    const said = [`${data.nodes.length} nodes, ${data.count} ranks` + (bad.length ? `; ${d3.sum(bad, (one) => one.unexpected)} unexpected links: ${[...new Set(bad.map((one) => one.kind))].join(", ")}` : "; no unexpected link")];
    const gone = data.nodes.flatMap((one) => one.ranks).filter((one) => one.end).map((one) => `rank ${one.rank} ${one.end}`);
    if (gone.length) said.push(gone.length > 8 ? `${gone.length} ranks named or silent` : gone.join(", "));
    drawn.forEach((svg, at) => svg.attr("role", "img").attr("aria-label", (at ? "Pairs of nodes: " : "Topology: ") + said.join("; ")));
    const inPicture = few && data.groups.length > 0 && drawn.length === 1; // otherwise the matrix tells the pairs
    const made = drawn.map((svg, at) => (at || inPicture ? readable(svg, data) : svg.node()));
    if (left) made.splice(1, 0, d3.create("p").attr("class", "note unlabelled").text(`${left} link${left > 1 ? "s" : ""} between nodes without a label: see the figures.`).node());
    return made;
  }

  const canvas = (width, height) => d3.create("svg").attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`);
  const gb = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toPrecision(3)) + " GB/s";

  // -- Few nodes: boxes around an ellipse ---------------------------------------------------------

  function size(node) {
    const columns = Math.min(4, Math.max(1, node.ranks.length));
    const rows = Math.ceil(node.ranks.length / columns);
    const words = Math.max(node.name.length * 7.2, ...node.inside.map((one) => insideWords(one).length * 6.1));
    return { columns, rows, w: Math.max(columns * CELL + 14, Math.min(190, words + 20), 84), h: 28 + rows * 32 + 15 * node.inside.length + 8 };
  }
  const insideWords = (one) => (one.unexpected ? "⚠ " : "") + one.kind + (one.links > 1 ? ` × ${one.links}` : "");

  // Centres of the boxes in the narrowest picture that has room for the links between them.
  function places(sizes, width, labelled) {
    const count = sizes.length, w = d3.max(sizes, (s) => s.w), h = d3.max(sizes, (s) => s.h);
    const gapX = labelled ? 108 : 28, gapY = labelled ? 64 : 28;
    if (count === 1) return { width: w + 8, height: h + 8, centres: [[w / 2 + 4, h / 2 + 4]] };
    if (count === 2) {
      const wide = Math.min(Math.max(width, 2 * w + gapX), 2 * w + 260);
      return { width: wide, height: h + 16, centres: [[w / 2 + 4, h / 2 + 8], [wide - w / 2 - 4, h / 2 + 8]] };
    }
    if (!labelled) { // nothing to draw between them: rows, in reading order
      const columns = Math.max(1, Math.min(count, Math.floor((width + gapX) / (w + gapX)))), rows = Math.ceil(count / columns);
      const centres = d3.range(count).map((at) => [4 + w / 2 + (at % columns) * (w + gapX), 8 + h / 2 + Math.floor(at / columns) * (h + gapY)]);
      return { width: columns * (w + gapX) - gapX + 8, height: rows * (h + gapY) - gapY + 16, centres };
    }
    const raw = d3.range(count).map((at) => {
      const angle = -Math.PI / 2 + (2 * Math.PI * at) / count - (count % 2 ? 0 : Math.PI / count);
      return [Math.cos(angle), Math.sin(angle)];
    });
    const [mx, my] = [d3.max(raw, (p) => Math.abs(p[0])), d3.max(raw, (p) => Math.abs(p[1]))];
    const apart = (pts) => pts.every((p, i) => pts.every((q, j) => j <= i || Math.abs(p[0] - q[0]) >= w + gapX - 1e-6 || Math.abs(p[1] - q[1]) >= h + gapY - 1e-6));
    const start = Math.max(Math.min(width, 2 * w + 440, 900), Math.min(width, count * 95));
    for (let wide = start; ; wide += 30) {
      const rx = (wide - w) / 2 - 4;
      for (let ry = (h + gapY) / 2; ry <= Math.max(280, 60 * count); ry += 8) {
        const pts = raw.map(([x, y]) => [(x / mx) * rx, (y / my) * ry]);
        if (rx > 0 && apart(pts)) {
          const height = 2 * ry + h + 16;
          return { width: wide, height, centres: pts.map(([x, y]) => [x + wide / 2, y + height / 2]) };
        }
      }
    }
  }

  function picture(data, width) {
    const sizes = data.nodes.map(size);
    const put = places(sizes, width, data.groups.length > 0);
    const svg = canvas(put.width, put.height);
    if (put.width > width) svg.classed("fixed", true);
    const at = new Map(), box = new Map();
    data.nodes.forEach((node, index) => {
      const { columns, w, h } = sizes[index], [cx, cy] = put.centres[index];
      const frame = { x: cx - w / 2, y: cy - h / 2, w, h, cx, cy };
      box.set(node.place, frame);
      node.ranks.forEach((one, k) => at.set(one.rank, [cx + ((k % columns) - (columns - 1) / 2) * CELL, frame.y + 28 + Math.floor(k / columns) * 32 + GPU_H / 2]));
    });
    const boxes = svg.append("g"), lines = svg.append("g"), gpus = svg.append("g"), labels = svg.append("g");
    for (const [index, node] of data.nodes.entries()) drawBox(boxes, gpus, node, box.get(node.place), sizes[index]);
    drawInside(lines, data, at);
    const ends = drawBetween(lines, data, at, box);
    for (const [group, held] of ends) [group.x, group.y] = middle(held).reduce(([ax, ay], [bx, by]) => [(ax + bx) / 2, (ay + by) / 2]);
    for (const node of data.nodes) for (const one of node.ranks) drawRank(gpus, one, at.get(one.rank), data.wrong.has(one.rank));
    return [svg, drawLabels(labels, data, ends, [...box.values()], put)];
  }

  function drawBox(layer, above, node, frame, { rows }) {
    const wrong = node.inside.some((one) => one.unexpected);
    layer.append("rect").attr("class", wrong ? "box wrong" : "box").attr("x", frame.x).attr("y", frame.y).attr("width", frame.w).attr("height", frame.h).attr("rx", 6);
    const room = Math.floor((frame.w - 12) / 6.6);
    above.append("text").attr("class", "name").attr("x", frame.cx).attr("y", frame.y + 18).attr("text-anchor", "middle").text(node.name.length > room ? node.name.slice(0, room - 1) + "…" : node.name);
    node.inside.forEach((one, index) => above.append("text").attr("class", one.unexpected ? "kinds wrong" : "kinds").attr("x", frame.cx).attr("y", frame.y + 28 + rows * 32 + 10 + 15 * index).attr("text-anchor", "middle").text(insideWords(one)));
  }

  function drawRank(layer, one, [x, y], wrong) {
    const kind = kindOf(one, wrong);
    layer.append("rect").attr("class", kind).attr("data-rank", one.rank).attr("x", x - GPU_W / 2).attr("y", y - GPU_H / 2).attr("width", GPU_W).attr("height", GPU_H).attr("rx", 4);
    layer.append("text").attr("class", one.end ? "ended" : one.behind ? "behind-mark" : null).attr("x", x).attr("y", y + 4).attr("text-anchor", "middle").text((ENDS[one.end] || (one.behind ? "▲" : "")) + one.rank);
  }
  const ENDS = { named: "✖", silent: "∅" };
  const kindOf = (one, wrong) => "gpu" + (one.end ? ` ${one.end}` : one.behind ? " behind" : wrong ? " wrong" : "") + (one.done ? "" : " undone");

  // One line for both directions between two ranks over the same transport.
  function merged(links) {
    const found = new Map();
    for (const one of links) {
      const [a, b] = [Math.min(one.source, one.destination), Math.max(one.source, one.destination)];
      const key = `${a} ${b} ${one.kind}`;
      const held = found.get(key) || { a, b, kind: one.kind, wrong: false };
      held.wrong = held.wrong || one.wrong;
      found.set(key, held);
    }
    return [...found.values()].sort((x, y) => x.wrong - y.wrong);
  }

  function drawInside(layer, data, at) {
    for (const one of merged(data.links.filter((link) => link.inside))) {
      const p = at.get(one.a), q = at.get(one.b);
      if (!p || !q) continue;
      const far = Math.abs(p[0] - q[0]) > CELL + 1 && Math.abs(p[1] - q[1]) < 1;
      const path = far ? `M${p}Q${(p[0] + q[0]) / 2},${p[1] + 30} ${q}` : `M${p}L${q}`;
      layer.append("path").attr("class", one.wrong ? "link wrong" : "link").attr("data-link", `${one.a}-${one.b}`).attr("d", path);
    }
  }

  // Lines between nodes: between ranks if there are few, otherwise between nodes. Returned by group.
  function drawBetween(layer, data, at, box) {
    const place = new Map(data.nodes.flatMap((node) => node.ranks.map((one) => [one.rank, node.place])));
    const lines = merged(data.links.filter((link) => !link.inside && at.has(link.source) && at.has(link.destination)));
    const single = lines.length <= FEW_LINES;
    const ends = new Map();
    for (const [index, group] of data.groups.entries()) {
      const mine = single ? lines.filter((one) => one.kind === group.kind && [one.a, one.b].map((r) => place.get(r)).sort((x, y) => x - y).join() === [group.one, group.other].join()) : [];
      const held = mine.map((one) => ({ p: at.get(one.a), q: at.get(one.b), wrong: one.wrong, name: `${one.a}-${one.b}` }));
      if (!held.length) {
        const same = data.groups.slice(0, index).filter((one) => one.one === group.one && one.other === group.other).length;
        const [a, b] = [box.get(group.one), box.get(group.other)];
        held.push({ p: [a.cx, a.cy + 7 * same], q: [b.cx, b.cy + 7 * same], wrong: !!group.unexpected, name: "" });
      }
      ends.set(group, held);
    }
    const under = layer.insert("g", ":first-child");
    for (const [group, held] of [...ends].sort((x, y) => !!x[0].unexpected - !!y[0].unexpected)) {
      for (const one of held) {
        const to = one.name ? layer : under;
        to.append("path").attr("class", one.wrong ? "link wrong" : "link").attr("data-link", one.name || null).attr("d", `M${one.p}L${one.q}`);
        if (!one.name) [one.p, one.q] = [edge(box.get(group.one), one.q), edge(box.get(group.other), one.p)];
      }
    }
    return ends;
  }

  // Where the line from a box's centre to a point leaves the box.
  function edge(frame, [x, y]) {
    const dx = x - frame.cx, dy = y - frame.cy;
    const share = Math.min(frame.w / 2 / Math.abs(dx || 1e-9), frame.h / 2 / Math.abs(dy || 1e-9), 1);
    return [frame.cx + dx * share, frame.cy + dy * share];
  }

  // Transport and bandwidth beside each line. With many lines only the unexpected ones and the slowest
  // must have a label, even if it covers something else. Returns how many lines have none.
  function drawLabels(layer, data, ends, boxes, put) {
    const measured = data.groups.filter((one) => Charts.known(one.bandwidth));
    const slowest = d3.least(measured, (one) => one.bandwidth);
    const all = data.groups.length <= FEW_LABELS;
    const taken = boxes.map(({ x, y, w, h }) => ({ x, y, w, h }));
    const lines = [...ends].map(([group, held]) => ({ group, ends: middle(held) }));
    const order = [...ends].sort((x, y) => y[0].unexpected - x[0].unexpected || (y[0] === slowest) - (x[0] === slowest));
    let left = 0;
    for (const [at, [group, held]] of order.entries()) {
      const must = group === slowest || (group.unexpected > 0 && at < FEW_LABELS);
      const said = [(group.unexpected ? "⚠ " : "") + group.kind + (group.links > 1 ? ` × ${group.links}` : "")];
      if (Charts.known(group.bandwidth)) said.push(gb(group.bandwidth));
      if (!all && group === slowest) said.push("slowest");
      const others = lines.filter((one) => one.group !== group);
      const frames = all || must || group.unexpected ? framesOf(said, middle(held), put) : [];
      const best = d3.least(frames, (frame) => covered(frame, taken) * others.length + others.filter((one) => meets(frame, one.ends)).length);
      if (!best || (!must && covered(best, taken))) { left++; continue; }
      taken.push(best);
      const made = layer.append("g").attr("class", group.unexpected ? "label wrong" : "label");
      made.append("rect").attr("x", best.x).attr("y", best.y).attr("width", best.w).attr("height", best.h).attr("rx", 3);
      said.forEach((words, k) => made.append("text").attr("x", best.x + best.w / 2).attr("y", best.y + 14 + 15 * k).attr("text-anchor", "middle").text(words));
    }
    return left;
  }

  // The middle line of a group.
  const middle = (held) => ["p", "q"].map((end) => [0, 1].map((axis) => d3.mean(held, (one) => one[end][axis])));

  // Places for a label along a line, the middle first.
  function framesOf(said, [p, q], put) {
    const w = d3.max(said, (words) => words.length) * 6.7 + 8, h = said.length * 15 + 4;
    return d3.sort(d3.range(0.16, 0.85, 0.02), (t) => Math.abs(t - 0.5)).map((t) => ({
      x: Math.max(2, Math.min(put.width - w - 2, p[0] + (q[0] - p[0]) * t - w / 2)),
      y: Math.max(2, Math.min(put.height - h - 2, p[1] + (q[1] - p[1]) * t - h / 2)),
      w, h,
    }));
  }

  // Whether a line passes through a frame: whether clipping at its four sides leaves anything.
  function meets({ x, y, w, h }, [p, q]) {
    let from = 0, to = 1;
    for (const [a, b, low, high] of [[p[0], q[0], x, x + w], [p[1], q[1], y, y + h]]) {
      if (a === b && (a < low || a > high)) return false;
      if (a === b) continue;
      const [one, other] = d3.extent([(low - a) / (b - a), (high - a) / (b - a)]);
      [from, to] = [Math.max(from, one), Math.min(to, other)];
    }
    return from < to;
  }

  // How much of a frame covers others.
  const covered = (frame, others) => d3.sum(others, (o) =>
    Math.max(0, Math.min(frame.x + frame.w, o.x + o.w) - Math.max(frame.x, o.x)) *
    Math.max(0, Math.min(frame.y + frame.h, o.y + o.h) - Math.max(frame.y, o.y)));

  // -- Many nodes --------------------------------------------------------------------------------

  function grid(data, width) {
    const square = 10, most = d3.max(data.nodes, (one) => one.ranks.length) || 1;
    const columns = Math.min(most, 8), deep = Math.ceil(most / columns);
    const longest = Math.min(12, d3.max(data.nodes, (one) => one.name.length));
    const w = Math.max(columns * (square + 2) + 10, longest * 6.8 + 10), h = 22 + deep * (square + 2) + 4;
    const across = Math.max(1, Math.floor((width + GAP) / (w + GAP)));
    const svg = canvas(width, Math.ceil(data.nodes.length / across) * (h + GAP));
    const touched = new Set(data.groups.filter((one) => one.unexpected).flatMap((one) => [one.one, one.other]));
    data.nodes.forEach((node, index) => {
      const x = (index % across) * (w + GAP) + 1, y = Math.floor(index / across) * (h + GAP) + 1;
      const wrong = touched.has(node.place) || node.inside.some((one) => one.unexpected);
      const behind = node.ranks.filter((one) => one.behind);
      svg.append("rect").attr("class", wrong ? "box wrong" : "box").attr("x", x).attr("y", y).attr("width", w - 2).attr("height", h - 2).attr("rx", 4);
      const ended = new Set(node.ranks.map((one) => ENDS[one.end]).filter(Boolean));
      const mark = [...ended].map((sign) => sign + " ").join("") + (wrong ? "⚠ " : "") + (behind.length ? "▲ " : "");
      const room = Math.floor((w - 8) / 6.6) - mark.length;
      svg.append("text").attr("class", ended.size ? "ended" : behind.length ? "behind-mark" : "name").attr("x", x + 5).attr("y", y + 14).text(mark + (node.name.length > room ? "…" + node.name.slice(1 - room) : node.name));
      node.ranks.forEach((one, k) => svg.append("rect")
        .attr("class", kindOf(one, data.wrong.has(one.rank)))
        .attr("data-rank", one.rank).attr("x", x + 5 + (k % columns) * (square + 2)).attr("y", y + 20 + Math.floor(k / columns) * (square + 2)).attr("width", square).attr("height", square).attr("rx", 1.5));
    });
    return svg;
  }

  // A picture or a matrix that tells its pairs of nodes, one at a time, the worst first.
  function readable(svg, data) {
    const box = document.createElement("div"), place = svg.node();
    box.append(place);
    if (place.classList.contains("fixed")) box.className = "fixed";
    const name = new Map(data.nodes.map((one) => [one.place, one.name]));
    const pairs = worstFirst(data.groups), said = (one, at) => [
      `${name.get(one.one)} – ${name.get(one.other)}: ${Charts.known(one.bandwidth) ? gb(one.bandwidth) : "not measured"}`, one.kind,
      one.unexpected ? `${one.unexpected} unexpected` : "", `${d3.format(",")(at + 1)} of ${d3.format(",")(pairs.length)}, the worst first`,
    ].filter(Boolean).join("; ");
    const points = pairs.map((one, at) => ({ words: said(one, at), x: one.x, y: one.y }));
    Charts.explore(box, place, points, "Pairs of nodes, the worst first", { now: 0, flat: false });
    return box;
  }
  const worstFirst = (groups) => d3.sort(groups, (one) => !one.unexpected, (one) => (Charts.known(one.bandwidth) ? one.bandwidth : Infinity));

  // A square for each pair of nodes: the stronger its colour, the higher the measured bandwidth.
  function matrix(data, width) {
    const count = data.nodes.length, index = new Map(data.nodes.map((one, at) => [one.place, at]));
    const named = Math.min(88, d3.max(data.nodes, (one) => one.name.length) * 7.4 + 10);
    const cell = Math.max(5, Math.min(34, Math.floor((Math.min(width, 760) - named - 40) / count)));
    const every = Math.ceil(13 / cell);
    const svg = canvas(named + cell * count + 40, cell * count + 56);
    if (named + cell * count + 40 > width) svg.classed("fixed", true);
    const speeds = data.groups.map((one) => one.bandwidth).filter(Charts.known);
    const strength = d3.scaleLinear().domain([0, d3.max(speeds) || 1]).range([0.08, 0.85]);
    data.nodes.forEach((node, at) => {
      if (at % every) return;
      svg.append("text").attr("x", named - 6).attr("y", Math.max(12, at * cell + cell / 2 + 4)).attr("text-anchor", "end").text(node.name.length > 12 ? "…" + node.name.slice(-11) : node.name);
    });
    const side = cell - (cell > 8 ? 2 : 1), crosses = [], first = data.groups.find((one) => one.unexpected);
    for (const group of [...data.groups].sort((a, b) => a.unexpected - b.unexpected)) {
      const [row, column] = [index.get(group.other), index.get(group.one)];
      const x = named + column * cell, y = row * cell, wrong = group.unexpected > 0;
      [group.x, group.y] = [x + side / 2, y + side / 2];
      const fill = svg.append("rect").attr("class", wrong ? "cell wrong" : "cell").attr("x", x).attr("y", y).attr("width", side).attr("height", side);
      if (!wrong) fill.attr("fill-opacity", Charts.known(group.bandwidth) ? strength(group.bandwidth) : 0.35);
      else crosses.push(`M${x + 1},${y + 1}l${side - 2},${side - 2}m0,${2 - side}l${2 - side},${side - 2}`);
      if (!wrong || group !== first) continue;
      svg.append("text").attr("class", "kinds wrong").attr("x", x + side + 4).attr("y", y - 3 < 10 ? y + side + 12 : y - 3).text(`⚠ ${group.kind}: ${data.nodes[column].name}, ${data.nodes[row].name}`);
    }
    if (crosses.length) svg.append("path").attr("class", "cross").attr("d", crosses.join(""));
    svg.append("path").attr("class", "grid").attr("d", data.nodes.map((node, at) => `M${named + at * cell},${at * cell}h${side}v${side}`).join(""));
    const said = speeds.length ? [`${gb(d3.min(speeds))} (pale) to ${gb(d3.max(speeds))} (strong)`] : [];
    said.push("crossed: unexpected; blank: no link");
    const slowest = d3.least(data.groups.filter((one) => Charts.known(one.bandwidth)), (one) => one.bandwidth);
    if (slowest) {
      svg.append("rect").attr("class", "slowest").attr("x", slowest.x - side / 2 - 1).attr("y", slowest.y - side / 2 - 1).attr("width", side + 2).attr("height", side + 2);
      said.unshift(`framed, the slowest: ${data.nodes[index.get(slowest.one)].name}, ${data.nodes[index.get(slowest.other)].name}: ${gb(slowest.bandwidth)}`);
    }
    said.forEach((words, k) => svg.append("text").attr("class", "kinds").attr("x", named).attr("y", cell * count + 18 + 14 * k).text(words));
    return svg;
  }

  return { draw };
})();
