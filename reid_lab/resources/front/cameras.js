// Scores per camera and NMI, before and after adaptation, with the controls of the adaptation; each change runs it again.
function render({ model, el }) {
  const controls = h("div", { class: "rl-controls" }), parts = {}, wanted = {}; // settings that were sent and are not yet answered

  const scale = { // setting -> what a slider's position means
    tau: { label: "tau", to: (v) => Number((10 ** (v / 20)).toPrecision(2)), from: (x) => Math.round(20 * Math.log10(x)), low: 0, high: 60 },
    k: { label: "k", to: Number, from: Number, low: 1, high: 20 },
    steps: { label: "steps", to: Number, from: Number, low: 0, high: 10 },
    rate: { label: "rate", to: (v) => Number((10 ** (v / 10 - 4)).toPrecision(2)), from: (x) => Math.round(10 * (Math.log10(x) + 4)), low: 0, high: 30 },
    batch: { label: "batch", to: (v) => 2 ** v, from: (x) => Math.round(Math.log2(x)), low: 3, high: 8 },
  };

  const make = (f) => {
    const method = h("select", { "aria-label": "method of adaptation", onchange: (e) => setState(model, { method: e.target.value }) },
      f.methods.map((name) => h("option", { value: name }, name)));
    parts.method = method;
    const by = h("select", { "aria-label": "distance that ranks", onchange: (e) => setState(model, { by: e.target.value }) },
      f.distances.map((name) => h("option", { value: name }, name)));
    parts.by = by;
    const sliders = Object.entries(scale).map(([name, s]) => {
      const value = h("output", {}), input = h("input", { type: "range", min: s.low, max: s.high, step: 1, "aria-label": s.label });
      input.addEventListener("input", () => { value.textContent = s.to(Number(input.value)); });
      input.addEventListener("change", () => { wanted[name] = s.to(Number(input.value)); setState(model, { [name]: wanted[name] }); });
      parts[name] = { input, value };
      return h("label", { class: "rl-slide" }, h("span", {}, s.label), input, value);
    });
    fill(controls, h("label", { class: "rl-group" }, "method", method), h("label", { class: "rl-group" }, "ranked by", by), sliders);
    if (f.advice) controls.append(h("span", { class: "rl-advice" }, f.advice));
  };

  const follow = (f, ui, changed) => { // controls show the settings of the view
    if (!parts.method) make(f);
    parts.method.value = ui.method;
    parts.by.value = ui.by;
    for (const [name, s] of Object.entries(scale)) {
      const { input, value } = parts[name];
      if (wanted[name] === ui[name]) delete wanted[name];
      const late = name in wanted; // the slider has moved on since; its own answer comes
      if (!late && (changed.has("ui") || value.textContent === "")) { input.value = s.from(ui[name]); value.textContent = ui[name]; }
      input.disabled = !f.learns.includes(ui.method);
    }
  };

  const written = (f, ui) => { // a page has no kernel that could run anything again: settings are words there
    const learnt = f.learns.includes(ui.method) ? Object.entries(scale).map(([name, s]) => [s.label, ui[name]]) : [];
    const settings = [["method", ui.method], ["ranked by", ui.by], ...learnt];
    fill(controls, settings.map(([name, value]) => h("span", { class: "rl-group rl-set" }, h("span", {}, name), h("b", {}, value))));
    if (f.advice) controls.append(h("span", { class: "rl-advice" }, f.advice));
    controls.append(h("span", { class: "rl-mute" }, "as written; a notebook with a kernel changes them"));
  };

  const past = (end, mark) => (mark > end - 3 && mark < end + 15 ? Math.max(end, mark) : end); // a number is beside the query's mark, not below it
  const bar = (kind, percent, text, mark, tick) => h("div", { class: `rl-track rl-${kind}` },
    percent === null ? null : h("div", { class: "rl-bar", style: `width:${Math.max(0, Math.min(100, percent))}%` }),
    tick === undefined || tick === null ? null : h("div", { class: "rl-tick", style: `left:${tick}%` }),
    mark === undefined || mark === null ? null : h("div", { class: "rl-mark", style: `left:${mark}%` }),
    h("span", { class: "rl-value", style: `left:${past(Math.max(percent ?? 0, tick ?? 0), mark)}%` }, text));

  const number = (v, digits) => (v === null ? "not defined" : v.toFixed(digits));
  const percent = (v) => (v === null || v === undefined ? null : 100 * v);

  return card(model, el, "cameras", ({ head, body, foot, root }, changed) => {
    const f = model.get("fixed"), now = model.get("now"), ui = model.get("ui"), { camera } = model.get("select"), live = !("queries" in f);
    fill(head, h("span", { class: "rl-title" }, ui.title), h("span", { class: "rl-mute" }, now.summary ?? ""));
    if (f.message) { fill(body, h("p", { class: "rl-message" }, f.message)); fill(foot); return; }
    if (live) follow(f, ui, changed);
    else written(f, ui);
    const chosen = Array.isArray(camera) ? camera : [camera];
    const row = (c) => {
      const mine = now.query && now.query.cam === c.cam ? now.query : {}, on = chosen.includes(c.cam);
      return h("button", { type: "button", class: `rl-cam ${c.done ? "" : "rl-wait"}`, "aria-pressed": String(on), "data-cam": c.cam,
        title: `${c.n} queries with a match; click to show this camera only`,
        "aria-label": `camera ${c.cam}: mAP ${number(c.before, 1)} before, ${number(c.after, 1)} after`,
        onclick: () => select(model, { camera: camera === c.cam ? null : c.cam }) },
      h("span", { class: "rl-name" }, `cam ${c.cam}`, h("small", {}, ` ${c.n}`)),
      h("span", { class: "rl-two" }, bar("before", c.before, number(c.before, 1), percent(mine.before)), bar("after", c.after, number(c.after, 1), percent(mine.after))));
    };
    const bars = (name, key) => h("div", { class: "rl-cam" }, h("span", { class: "rl-name" }, name),
      h("span", { class: "rl-two" }, ["before", "after"].map((side) => {
        const nmi = f.nmi[side];
        return bar(side, nmi === null ? null : percent(nmi[key]), nmi === null ? "…" : number(nmi[key], 3), null, key === "camera" && nmi ? percent(nmi.chance) : null);
      })));
    if (!controls.parentNode) fill(body, controls, h("div", { class: "rl-bars" }));
    fill(body.lastChild, h("div", { class: "rl-col" }, h("h4", {}, "mAP of queries by camera"), f.cams.map(row)),
      h("div", { class: "rl-col" }, h("h4", {}, "NMI of clusters"), bars("cameras ↓", "camera"), bars("identities ↑", "identity")));
    fill(foot, h("span", {}, h("i", { class: "rl-is rl-before" }), f.names[0]), h("span", {}, h("i", { class: "rl-is rl-after" }), f.names[1]),
      f.nmi.before || f.nmi.after ? h("span", {}, "│ by chance") : null, now.query ? h("span", {}, "◆ the selected query") : null, h("span", {}, f.status));
    root.onkeydown = (event) => { if (event.key === "Escape") { select(model, { camera: null }); event.preventDefault(); event.stopPropagation(); } };
    root.dataset.cockpit = JSON.stringify({ method: f.names[1], by: ui.by, advice: f.advice, done: f.cams.filter((c) => c.done).length, cams: f.cams.length,
      after: f.cams.map((c) => c.after), nmi: f.nmi.after && f.nmi.after.camera, run: f.run, camera, query: now.query ?? null });
  });
}
