// Pairs of cameras: shares of neighbours, coloured by chance. Arrow keys move, Enter selects a pair, which filters the maps.
function render({ model, el }) {
  let at = [0, 0];

  const toggle = (value) => {
    const { camera } = model.get("select");
    select(model, { camera: JSON.stringify(camera) === JSON.stringify(value) ? null : value });
  };

  const tint = (ratio) => { // factors of two; three of them are the strongest colour
    if (ratio === null) return "transparent";
    const power = ratio > 0 ? Math.max(-3, Math.min(3, Math.log2(ratio))) : -3;
    return `color-mix(in srgb, ${power > 0 ? "#e8710a" : "#2a86c8"} ${Math.round(Math.abs(power) * 26)}%, var(--rl-bg))`;
  };

  const keys = (event, root) => {
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (event.key === "Escape") { select(model, { camera: null }); event.preventDefault(); event.stopPropagation(); return; }
    if (!by || event.target.closest("select, input")) return;
    event.preventDefault();
    event.stopPropagation();
    const { query, gallery } = model.get("fixed");
    if (!query.length) return;
    at = [Math.max(0, Math.min(query.length - 1, at[0] + by[0])), Math.max(0, Math.min(gallery.length - 1, at[1] + by[1]))];
    root.querySelectorAll("[data-at]").forEach((cell) => cell.setAttribute("tabindex", "-1"));
    const cell = root.querySelector(`[data-at="${at}"]`);
    cell?.setAttribute("tabindex", "0");
    cell?.focus();
  };

  return card(model, el, "pairs", ({ head, body, foot, root }) => {
    const f = model.get("fixed"), now = model.get("now"), ui = model.get("ui"), { camera } = model.get("select");
    const focused = root.contains(root.ownerDocument.activeElement) && root.ownerDocument.activeElement.dataset.at !== undefined;
    const chosen = (q, g) => (Array.isArray(camera) ? camera[0] === q && camera[1] === g : camera !== null && (camera === q || camera === g));
    fill(head, h("span", { class: "rl-title" }, ui.title), allCameras(model, camera), h("span", { class: "rl-mute rl-sum" }, now.summary ?? ""));
    if (f.message) { fill(body, h("p", { class: "rl-message" }, f.message)); fill(foot); return; }
    const cell = (q, g, r, c) => {
      const share = f.share[r][c], ratio = f.ratio[r][c], own = now.row === r ? now.own[c] : 0;
      const text = share === null ? "no neighbours" : `${(100 * share).toFixed(0)} % of the neighbours${ratio === null ? "" : `, ${ratio.toFixed(1)} times chance`}`;
      const right = f.right[r][c] === null ? "" : `, ${(100 * f.right[r][c]).toFixed(0)} % of them right`;
      return h("td", {}, h("button", { type: "button", class: `rl-cell ${now.row === r ? "rl-row" : ""}`, "data-at": `${r},${c}`,
        tabindex: r === at[0] && c === at[1] ? "0" : "-1", "aria-pressed": String(chosen(q, g) && Array.isArray(camera)),
        "data-on": String(chosen(q, g)), style: `background:${tint(ratio)}`, title: `queries of camera ${q}, gallery of camera ${g}: ${text}${right}`,
        "aria-label": `queries of camera ${q}, gallery of camera ${g}: ${text}${right}`, onclick: () => { at = [r, c]; toggle([q, g]); } },
      share === null ? "" : (100 * share).toFixed(0), own ? h("sup", { title: `${own} neighbours of the query` }, own) : null));
    };
    const one = (c) => button(`camera ${c} only`, String(c), () => toggle(c));
    fill(body, h("table", { class: "rl-grid" },
      h("thead", {}, h("tr", {}, h("th", { class: "rl-mute" }, "query ↓", h("br"), "neighbours\u00a0→"), f.gallery.map((c) => h("th", { scope: "col" }, one(c))))),
      h("tbody", {}, f.query.map((q, r) => h("tr", {}, h("th", { scope: "row" }, one(q)), f.gallery.map((g, c) => cell(q, g, r, c)))))));
    fill(foot, h("span", {}, h("i", { class: "rl-more" }), "more than by chance"), h("span", {}, h("i", { class: "rl-less" }), "less"),
      h("span", {}, "% of the 10 nearest · small number: of this query · arrows move, Enter filters, Esc all"));
    root.onkeydown = (event) => keys(event, root);
    const digits = Math.max(2, ...[...f.query, ...f.gallery].map((c) => String(c).length)); // of the longest camera
    root.style.setProperty("--rl-cols", f.gallery.length);
    root.style.setProperty("--rl-digits", digits);
    root.dataset.cells = JSON.stringify({ camera, share: f.share, row: now.row ?? null });
    if (focused) root.querySelector(`[data-at="${at}"]`)?.focus({ preventScroll: true });
  });
}
