// Heat maps: a click on a word explains what it adds, on the caption again the whole; each map has its curve and a verdict beside it.
function render({ model, el }) {
  const STOPS = [[50, 10, 94], [120, 28, 109], [187, 55, 84], [237, 105, 37], [251, 180, 26], [252, 255, 164]]; // inferno
  const SVG = "http" + "://www.w3.org/2000/svg";

  const colour = (v) => {
    const x = v * (STOPS.length - 1), i = Math.min(STOPS.length - 2, Math.floor(x));
    return STOPS[i].map((c, k) => c + (STOPS[i + 1][k] - c) * (x - i));
  };

  // A grid of bytes as a picture that the browser smooths.
  const paint = (canvas, heat, strength) => {
    const bytes = Uint8Array.from(atob(heat.data), (c) => c.charCodeAt(0));
    canvas.width = heat.w;
    canvas.height = heat.h;
    const pen = canvas.getContext("2d"), image = pen.createImageData(heat.w, heat.h);
    bytes.forEach((b, i) => image.data.set([...colour(b / 255), 255 * strength * Math.sqrt(b / 255)], 4 * i));
    pen.putImageData(image, 0, 0);
    canvas.dataset.sum = String(bytes.reduce((a, b, i) => (a * 31 + b * (i + 1)) % 1000003, 0));
  };

  const shape = (name, attrs) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attrs)) node.setAttribute(key, value);
    return node;
  };

  // Deletion and insertion in the band of random maps.
  const curve = (curves) => {
    const all = Object.values(curves).flatMap((c) => [...c.own, ...c.low, ...c.high]);
    const lo = Math.min(...all), span = Math.max(1e-9, Math.max(...all) - lo);
    const point = (v, i, n) => `${(4 + 132 * i / (n - 1)).toFixed(1)},${(86 - 78 * (v - lo) / span).toFixed(1)}`;
    const line = (values) => values.map((v, i) => point(v, i, values.length)).join(" ");
    const svg = shape("svg", { viewBox: "0 0 140 90", class: "rl-curve", role: "img", "aria-label": "score while places are deleted or inserted" });
    for (const [mode, c] of Object.entries(curves)) {
      svg.append(shape("polygon", { points: `${line(c.low)} ${c.high.map((v, i) => point(v, i, c.high.length)).reverse().join(" ")}`, class: "rl-band" }));
      svg.append(shape("polyline", { points: line(c.own), class: `rl-${mode}` }));
    }
    return svg;
  };

  const panel = (p, strength) => {
    const canvas = p.heat ? h("canvas", { class: "rl-heat", role: "img", "aria-label": `heat map: ${p.head}; ${p.verdict}` }) : null;
    if (canvas) paint(canvas, p.heat, strength);
    return h("figure", { class: `rl-map-panel ${p.believed === false ? "rl-doubt" : ""}` },
      h("figcaption", {}, p.head),
      h("div", { class: "rl-pair" }, picture(p.thumb, p.head), p.heat ? h("div", { class: "rl-over-image" }, picture(p.thumb, ""), canvas) : null,
        h("div", { class: "rl-evidence" }, p.curve ? [curve(p.curve), h("small", {}, "score, share of the image gone (", h("b", { class: "rl-deletion" }, "deletion"), ") or come (",
          h("b", { class: "rl-insertion" }, "insertion"), "); band: random maps")] : null)),
      p.verdict ? h("p", { class: "rl-verdict" }, p.verdict) : null, p.trust ? h("p", { class: "rl-trust" }, p.trust) : null);
  };

  const pick = (word) => setState(model, { word: model.get("ui").word === word ? -1 : word });

  const keys = (event, root) => {
    if (event.target.closest("input, select")) return;
    const n = (model.get("now").words ?? []).length, here = model.get("ui").word;
    const acts = { Escape: () => setState(model, { word: -1 }) };
    if (n) Object.assign(acts, { ArrowRight: () => setState(model, { word: (here + 1) % n }), ArrowLeft: () => setState(model, { word: here <= 0 ? n - 1 : here - 1 }) });
    if (!acts[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  };

  const menu = (label, name, values, chosen) => h("select", { "aria-label": label, onchange: (event) => setState(model, { [name]: event.target.value }) },
    values.map((value) => h("option", { value, selected: value === chosen }, value)));

  return card(model, el, "attention", ({ head, body, foot, root }) => {
    const now = model.get("now"), { title, method, word, saliency, strength } = model.get("ui"), { methods, saliencies, queries } = model.get("fixed");
    const words = now.words ?? [], page = Array.isArray(queries);
    const active = root.ownerDocument.activeElement, focused = root.contains(active) ? active.dataset.at ?? active.getAttribute("aria-label") : null;
    const top = Math.max(1e-9, ...words.map((w) => Math.abs(w.value ?? 0)));
    fill(head, h("span", { class: "rl-title" }, title || "Heat map"),
      page ? h("span", {}, method) : menu("method of the map", "method", methods, method),
      words.length && !page ? h("span", { class: "rl-group" }, h("span", { class: "rl-mute" }, "words by"), menu("weight of words", "saliency", saliencies, saliency)) : null,
      h("label", { class: "rl-group rl-push" }, h("span", { class: "rl-mute" }, "heat"), h("input", { type: "range", min: "0", max: "1", step: "0.05", value: strength,
        "aria-label": "strength of the heat", oninput: (event) => setState(model, { strength: Number(event.target.value) }) })));
    fill(body, now.message ? h("p", { class: "rl-message" }, now.message) : null,
      words.length ? h("div", { class: "rl-caption-words", role: "group", "aria-label": "words of the caption; one is explained" }, words.map((w, i) =>
        h("button", { type: "button", class: `rl-word ${w.gone ? "rl-gone" : ""} ${w.stop ? "rl-stop" : ""}`, "data-at": i, "aria-pressed": String(i === word), disabled: w.gone,
          "aria-label": `explain ${w.text}`, title: w.value === undefined ? "masked" : `adds ${w.value.toFixed(3)} to the score`, onclick: () => pick(i) },
          h("span", {}, w.text), h("i", { class: w.value < 0 ? "rl-harm" : "", style: `width:${(100 * Math.abs(w.value ?? 0) / top).toFixed(1)}%` })))) : null,
      now.words_verdict ? h("p", { class: `rl-verdict ${now.words_believed ? "" : "rl-not"}` }, now.words_verdict) : null,
      h("div", { class: "rl-panels" }, (now.panels ?? []).map((p) => panel(p, strength))));
    fill(foot, words.length ? h("span", {}, "click a word: what it adds · ← → words · Esc whole caption") : h("span", {}, now.about ?? ""));
    root.onkeydown = (event) => keys(event, root);
    if (focused !== null) (root.querySelector(`[data-at="${focused}"]`) ?? root.querySelector(`[aria-label="${CSS.escape(focused)}"]`))?.focus({ preventScroll: true });
  });
}
