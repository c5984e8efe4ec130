// Map of features: plotly draws points, marks of the selection lie above them. A click selects, a camera's key filters.
function unpack(text, kind) {
  return new kind(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
}

function render({ model, el }) {
  let points = null, plotted = null, plotly = null;
  const webgl = Boolean(document.createElement("canvas").getContext("webgl"));
  const plot = h("div", { class: "rl-plot" }), tip = h("div", { class: "rl-tip", hidden: true });

  const read = () => {
    const f = model.get("fixed"), groups = {};
    for (const [name, g] of Object.entries(f.groups)) groups[name] = { ...g, codes: unpack(g.codes, Int16Array) };
    return { x: unpack(f.x, Float32Array), y: unpack(f.y, Float32Array), query: unpack(f.query, Uint8Array), row: unpack(f.row, Int32Array),
      pid: unpack(f.pid, Int32Array), cam: unpack(f.cam, Int32Array), groups };
  };

  const shown = (camera) => { // whether a point passes the filter
    if (camera === null) return () => true;
    const [ofQuery, ofGallery] = Array.isArray(camera) ? camera : [camera, camera];
    return (i) => points.cam[i] === (points.query[i] ? ofQuery : ofGallery);
  };

  const trace = (ids, marker, more = {}) => ({ type: webgl ? "scattergl" : "scatter", mode: "markers", hoverinfo: "none", showlegend: false,
    x: ids.map((i) => points.x[i]), y: ids.map((i) => points.y[i]), customdata: ids, marker, ...more });

  const base = () => {
    const { colour } = model.get("ui"), group = points.groups[colour], on = shown(model.get("select").camera);
    const all = Array.from(points.x.keys()), colours = group.colours;
    const paint = (ids) => ids.map((i) => colours[group.codes[i]]);
    const pick = (query) => all.filter((i) => on(i) && points.query[i] === query);
    const off = all.filter((i) => !on(i)), gallery = pick(0), queries = pick(1);
    const size = all.length > 6000 ? 4 : all.length > 1500 ? 5 : 6;
    return [trace(off, { size: size - 1, color: "#8a939c", opacity: 0.13 }, { hoverinfo: "skip" }),
      trace(gallery, { size, color: paint(gallery), opacity: 0.75 }),
      trace(queries, { size: size + 2.5, color: paint(queries), symbol: "triangle-up", opacity: 0.95, line: { width: 0 } })];
  };

  // The query, its neighbours and what is chosen: an SVG above the points, so that a step redraws no point.
  const svg = (tag, attrs) => {
    const node = document.createElementNS(plot.querySelector("svg").namespaceURI, tag);
    Object.entries(attrs).forEach(([key, value]) => node.setAttribute(key, value));
    return node;
  };
  let over = null;
  const above = () => {
    const { xaxis, yaxis, _size: edge } = plot._fullLayout ?? {};
    if (!xaxis) return;
    const { at, near } = model.get("now"), { gallery } = model.get("select"), where = new Map(); // gallery row -> point
    const place = (p) => [xaxis.l2p(p.x) + edge.l, yaxis.l2p(p.y) + edge.t];
    if (gallery.length) points.row.forEach((r, i) => { if (!points.query[i]) where.set(r, { x: points.x[i], y: points.y[i] }); });
    const drawn = [], path = (d, kind) => drawn.push(svg("path", { d, class: kind }));
    const ring = ([x, y], r, kind) => drawn.push(svg("circle", { cx: x, cy: y, r, class: kind }));
    for (const n of near ?? []) {
      const [x, y] = place(n);
      if (at) path(`M${place(at)}L${[x, y]}`, "rl-line");
      if (n.right === false) path(`M${[x - 4, y - 4]}l8,8m0,-8l-8,8`, "rl-near");
      else ring([x, y], 6, "rl-near");
    }
    for (const r of gallery) {
      const p = (near ?? []).find((n) => n.row === r) ?? where.get(r);
      if (p) ring(place(p), 10, "rl-chosen");
    }
    if (at) { const [x, y] = place(at); path(`M${[x, y - 10]}l9,16h-18z`, "rl-at"); }
    over ??= plot.parentNode.insertBefore(svg("svg", { class: "rl-over", "aria-hidden": "true" }), tip);
    over.replaceChildren(...drawn);
  };

  const step = (by) => {
    const { query } = model.get("select"), { queries, n_query } = model.get("fixed");
    const n = queries ? queries.length : n_query;
    if (!n) return;
    const here = query === null ? (by > 0 ? -1 : 0) : queries ? queries.indexOf(query) : query;
    const next = (here + by + n) % n;
    select(model, { query: queries ? queries[next] : next });
  };

  const clicked = ({ points: [point], event }) => {
    const i = point?.customdata;
    if (i === undefined || i === null) return;
    if (points.query[i]) select(model, { query: points.row[i] });
    else {
      const { gallery } = model.get("select"), add = event?.ctrlKey || event?.metaKey || event?.shiftKey;
      select(model, { gallery: add ? [...gallery.filter((r) => r !== points.row[i]), points.row[i]] : [points.row[i]] });
    }
  };

  // What is under the mouse: words at once, its image or caption when the kernel has sent it (a page without a kernel has words only).
  const images = new Map();
  let under = null;
  const showTip = () => {
    const own = images.get(under.of);
    fill(tip, own?.thumb ? picture(own.thumb, under.of) : null, own?.caption ? h("q", {}, own.caption) : null, under.text);
  };
  const arrived = (message) => {
    if (message.image === undefined) return;
    images.set(message.of, message.image);
    if (under?.of === message.of && !tip.hidden) showTip();
  };
  model.on("msg:custom", arrived);

  const hover = ({ points: [point], event }) => {
    const i = point?.customdata;
    if (i === undefined || i === null) return;
    const place = plot.getBoundingClientRect(), pid = points.pid[i], cam = points.cam[i];
    under = { of: `${points.query[i] ? "query" : "gallery"} ${points.row[i]}` };
    under.text = `${under.of} · ${pid < 0 ? "id unknown" : `id ${pid}`}${cam < 0 ? "" : ` · cam ${cam}`}`;
    if (!images.has(under.of)) model.send({ image: [points.query[i] ? "query" : "gallery", points.row[i]] });
    showTip();
    Object.assign(tip.style, { left: `${event.clientX - place.left}px`, top: `${event.clientY - place.top}px` });
    tip.hidden = false;
  };

  const keys = (foot) => {
    const { colour } = model.get("ui"), { names, colours, values, counts } = points.groups[colour], { camera } = model.get("select");
    const active = Array.isArray(camera) ? camera : [camera];
    const one = (name, i) => {
      const inside = [h("i", { style: `--rl-swatch:${colours[i]}` }), name, h("span", { class: "rl-mute" }, counts[i])];
      if (colour !== "camera" || values[i] === null) return h("span", { class: "rl-key" }, inside);
      return h("button", { type: "button", class: "rl-key", "aria-pressed": String(active.includes(values[i])),
        title: "show this camera only; with Shift: the pair of the chosen camera (queries) and this one (gallery)",
        onclick: (event) => select(model, { camera: event.shiftKey && active[0] !== null ? [active[0], values[i]]
          : camera === values[i] || (Array.isArray(camera) && camera.includes(values[i])) ? null : values[i] }) }, inside);
    };
    fill(foot, ...names.map(one), h("span", { class: "rl-mute" }, "▲ query  ● gallery  ○ near, right  ✕ near, wrong"), allCameras(model, camera));
  };

  const axis = (i) => { // maps that share a layout have the same limits
    const { limits } = model.get("fixed");
    return limits ? { visible: false, range: limits.slice(2 * i, 2 * i + 2) } : { visible: false };
  };

  const layout = () => ({ margin: { l: 4, r: 4, t: 4, b: 4 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    xaxis: axis(0), yaxis: axis(1), dragmode: "pan", hovermode: "closest", hoverdistance: 8, uirevision: 1 });

  // Its card changes with the window, with a neighbour, and with a side bar of JupyterLab, of which the window knows nothing.
  const sizes = new ResizeObserver(() => {
    const { width, height } = plot._fullLayout ?? {};
    const changed = Math.round(width) !== plot.clientWidth || Math.round(height) !== plot.clientHeight;
    if (plot.clientWidth && changed) plotly.Plots.resize(plot);
  });

  const busy = { now: Promise.resolve() };
  const redraw = async (all) => {
    plotly ??= await library(model, "plotly");
    if (!plot.isConnected) return;
    if (all || !plotted) {
      plotted = base();
      await plotly.react(plot, plotted, layout(), { displaylogo: false, scrollZoom: true,
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"] });
      if (!plot.dataset.wired) {
        plot.dataset.wired = "1";
        sizes.observe(plot);
        plot.on("plotly_click", clicked);
        plot.on("plotly_hover", hover);
        plot.on("plotly_afterplot", above);
        plot.on("plotly_relayouting", above);
        plot.on("plotly_unhover", () => { tip.hidden = true; });
      }
    }
    above();
    el.firstChild.dataset.marks = JSON.stringify({ query: model.get("select").query, near: (model.get("now").near ?? []).length,
      on: plotted[1].x.length + plotted[2].x.length, chosen: model.get("select").gallery.length, colour: model.get("ui").colour });
  };
  let drawn = {};

  const stop = card(model, el, "map", ({ head, body, foot, root }, changed) => {
    if (changed.has("fixed")) { points = read(); drawn = {}; }
    const now = model.get("now"), ui = model.get("ui"), chosen = model.get("select");
    if (!points.groups[ui.colour]) return;
    const choice = h("select", { "aria-label": "colour by", onchange: (event) => setState(model, { colour: event.target.value }) },
      Object.keys(points.groups).map((name) => h("option", { value: name, selected: name === ui.colour }, name)));
    fill(head, h("span", { class: "rl-title" }, ui.title), h("label", { class: "rl-group" }, "colour", choice),
      h("span", { class: "rl-group" }, button("previous query", "‹", () => step(-1)),
        h("span", {}, chosen.query === null ? "no query" : `query ${chosen.query}`), button("next query", "›", () => step(1))),
      h("span", { class: "rl-mute rl-sum" }, now.summary ?? ""));
    if (!plot.parentNode) fill(body, plot, tip);
    keys(foot);
    root.onkeydown = (event) => {
      const acts = { ArrowDown: () => step(1), ArrowUp: () => step(-1), Escape: () => select(model, { gallery: [], camera: null }) };
      if (!acts[event.key] || event.target.closest("select, input")) return;
      event.preventDefault();
      event.stopPropagation();
      acts[event.key]();
    };
    const want = { colour: ui.colour, camera: JSON.stringify(chosen.camera) };
    const all = want.colour !== drawn.colour || want.camera !== drawn.camera;
    drawn = want;
    busy.now = busy.now.then(() => redraw(all));
  });
  return () => { stop(); sizes.disconnect(); model.off("msg:custom", arrived); if (plotly) plotly.purge(plot); };
}
