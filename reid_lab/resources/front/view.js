// What all front ends share. Text from data is set as text, never as HTML.

// An element: attributes, listeners (on...), children; strings become text nodes.
function h(tag, attrs = {}, ...kids) {
  const el = document.createElement(tag);
  for (const [key, value] of Object.entries(attrs)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else el.setAttribute(key, value === true ? "" : value);
  }
  return fill(el, ...kids);
}

// Replace what an element holds; nothing is left out, not written.
function fill(el, ...kids) {
  el.replaceChildren(...kids.flat(9).filter((kid) => kid !== null && kid !== undefined && kid !== "")
    .map((kid) => (kid instanceof Node ? kid : String(kid))));
  return el;
}

// JupyterLab says "model not found" where a saved widget has no kernel, though a picture stands beside it. So what it saves
// holds the picture alone; what it shows stays as it is.
function savePicture(model) {
  const notebook = model.widget_manager?.context?.model, widget = "application/vnd.jupyter.widget-view+json";
  if (!notebook?.toJSON || notebook.reidLab) return;
  const whole = notebook.toJSON;
  notebook.reidLab = true;
  notebook.toJSON = (...args) => {
    const saved = whole.apply(notebook, args);
    for (const { data } of (saved?.cells ?? []).flatMap((cell) => cell.outputs ?? []))
      if (data?.["image/png"]) delete data[widget];
    return saved;
  };
}

// The card of a view: `draw(what)` is called for every set of changes, once a frame; gives what anywidget's render returns.
function card(model, el, kind, draw) {
  const parts = {
    head: h("header", { class: "rl-head" }), body: h("div", { class: "rl-body" }), foot: h("footer", { class: "rl-foot" }),
    status: h("p", { class: "rl-status", role: "status", "aria-live": "polite" }),
  };
  const root = h("section", { class: `rl rl-${kind}`, tabindex: "0", "data-lm-suppress-shortcuts": "true" }, // keys are ours, not Lab's
    parts.head, parts.body, parts.foot, parts.status);
  // JupyterLab looks at what has the focus before it looks at what is around it: else arrow keys on a slider move its cells.
  root.addEventListener("focusin", ({ target }) => target.setAttribute("data-lm-suppress-shortcuts", "true"));
  el.replaceChildren(root);
  savePicture(model);
  let waiting = null;
  const update = (name) => {
    if (waiting) { waiting.add(name); return; }
    waiting = new Set([name]);
    queueMicrotask(() => {
      const names = waiting;
      waiting = null;
      root.setAttribute("aria-label", model.get("now").label ?? kind);
      draw({ ...parts, root }, names);
      root.dataset.drawn = String(Number(root.dataset.drawn ?? 0) + 1);
    });
  };
  const names = ["fixed", "now", "select", "ui"];
  const listeners = names.map((name) => () => update(name));
  names.forEach((name, i) => model.on(`change:${name}`, listeners[i]));
  const showStatus = (message) => { if (message.status !== undefined) parts.status.textContent = message.status; };
  model.on("msg:custom", showStatus);
  model.send({ shown: 1 });
  names.forEach(update);
  return () => {
    names.forEach((name, i) => model.off(`change:${name}`, listeners[i]));
    model.off("msg:custom", showStatus);
    model.send({ shown: -1 });
  };
}

// A number with so many digits; what rounds to zero has no sign.
function fixedDigits(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

const select = (model, values) => model.send({ select: values });
const setState = (model, values) => model.send({ ui: values });

// An image, or its name where there is none; without `alt` where the element around it is labelled.
function picture(thumb, alt, attrs = {}) {
  if (thumb?.uri) {
    const src = thumb.uri[0] === "#" ? globalThis.reidLab.images[Number(thumb.uri.slice(1))] : thumb.uri; // once a page
    return h("img", { src, alt, draggable: "false", ...attrs, class: `rl-img ${attrs.class ?? ""}` });
  }
  const spoken = alt ? { role: "img", "aria-label": `${alt}: no image` } : { "aria-hidden": "true" }; // what is around it says all
  return h("span", { ...spoken, ...attrs, class: `rl-img rl-none ${attrs.class ?? ""}` },
    h("span", {}, thumb?.missing ?? "no image"));
}

const button = (label, text, act, off = false) =>
  h("button", { type: "button", class: "rl-button", "aria-label": label, title: label, disabled: off, onclick: act }, text);

// Brings back the images of all cameras; where none is filtered it keeps its place, so that neighbours stay level.
const allCameras = (model, camera) => h("span", { class: `rl-push ${camera === null ? "rl-away" : ""}` },
  button("show all cameras", "show all cameras", () => select(model, { camera: null }), camera === null));

// Another library, fetched from the kernel (or found in the page) once for all views.
async function library(model, name) {
  globalThis.reidLab ??= {};
  globalThis.reidLab[name] ??= new Promise((resolve) => {
    const got = (message, buffers) => {
      if (message.library !== name) return;
      model.off("msg:custom", got);
      resolve(buffers[0]);
    };
    model.on("msg:custom", got);
    model.send({ need: name });
  }).then(async (packed) => {
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const module = { exports: {} };
    new Function("module", "exports", "define", await new Response(stream).text())(module, module.exports, undefined);
    return module.exports;
  });
  return globalThis.reidLab[name];
}
