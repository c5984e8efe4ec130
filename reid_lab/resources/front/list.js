// Ranked list: the query, and its gallery images page by page. Arrow keys move, Enter selects, Page keys turn pages.
function render({ model, el }) {
  let at = 0; // position of the keyboard within all results

  const step = (by) => {
    const { query } = model.get("select");
    const { queries, n_query } = model.get("fixed");
    const all = queries ?? { length: n_query, indexOf: (q) => q };
    if (!all.length) return;
    const here = query === null ? (by > 0 ? -1 : 0) : all.indexOf(query);
    const next = (here + by + all.length) % all.length;
    select(model, { query: queries ? queries[next] : next });
  };

  const pages = () => Math.max(1, Math.ceil((model.get("now").items ?? []).length / model.get("ui").k));
  const turn = (page) => { if (page >= 0 && page < pages()) { at = page * model.get("ui").k; setState(model, { page }); } };

  const choose = (row, add) => {
    const chosen = model.get("select").gallery;
    const rest = add ? chosen.filter((r) => r !== row) : [];
    select(model, { gallery: chosen.includes(row) && (add || chosen.length === 1) ? rest : [...rest, row] });
  };

  const move = (to, root) => {
    const items = model.get("now").items ?? [];
    const { k, page } = model.get("ui");
    at = Math.max(0, Math.min(items.length - 1, to));
    if (Math.floor(at / k) !== page) turn(Math.floor(at / k));
    else root.querySelector(`[data-at="${at}"]`)?.focus();
  };

  const keys = (event, root) => {
    if (event.target.closest("button, select, input")) return;
    const { k, page } = model.get("ui");
    const acts = {
      ArrowRight: () => move(event.target.dataset.at === undefined ? at : at + 1, root), ArrowLeft: () => move(at - 1, root),
      Home: () => move(0, root), End: () => move(Infinity, root),
      PageDown: () => turn(page + 1), PageUp: () => turn(page - 1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
      Escape: () => select(model, { gallery: [] }),
    };
    const item = (model.get("now").items ?? [])[at];
    acts.Enter = acts[" "] = () => item && event.target.dataset.at !== undefined && choose(item.row, event.ctrlKey || event.shiftKey);
    if (!acts[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  };

  const one = (item, i, chosen, camera) => {
    const kind = item.right === null ? "" : item.right ? "rl-ok" : "rl-no";
    const person = item.pid < 0 ? "identity unknown" : `id ${item.pid_name ?? item.pid}`;
    const verdict = item.right === null ? "not known" : item.right ? "same person" : "another person";
    const seen = item.cam === null ? "" : ` · cam ${item.cam_name ?? item.cam}`;
    const wanted = Array.isArray(camera) ? camera[1] : camera;
    const dim = wanted !== null && item.cam !== null && item.cam !== wanted ? "rl-dim" : "";
    const alt = `rank ${item.rank}, ${verdict}, ${person}${seen.replace(" ·", ",")}, score ${item.score.toFixed(3)}`;
    return h("li", { class: `rl-item ${kind} ${dim}`, role: "option", tabindex: i === at ? "0" : "-1", "data-at": i, "aria-label": alt,
      "aria-selected": String(chosen.includes(item.row)), title: `gallery row ${item.row}${item.name ? `: ${item.name}` : ""}`,
      onclick: (event) => { at = i; choose(item.row, event.ctrlKey || event.metaKey || event.shiftKey); } },
      picture(item.thumb, alt), item.right === null ? null : h("span", { class: "rl-badge", "aria-hidden": "true" }, item.right ? "✓" : "✕"),
      h("span", { class: "rl-line" }, h("b", {}, item.rank), h("span", {}, item.score.toFixed(3))), h("small", {}, h("span", {}, item.pid < 0 ? "id ?" : `id ${item.pid_name ?? item.pid}`), item.cam === null ? null : h("span", {}, `cam ${item.cam_name ?? item.cam}`)));
  };

  const query = (q) => {
    const labels = [q.pid < 0 ? "identity unknown" : `id ${q.pid_name ?? q.pid}`, q.cam === null ? null : `cam ${q.cam_name ?? q.cam}`].filter((x) => x !== null);
    return h("figure", { class: `rl-query ${q.text === null ? "" : "rl-text"}` },
      q.text === null ? picture(q.thumb, [q.name, ...labels].join(", ")) : h("blockquote", {}, q.text),
      h("figcaption", { title: q.name }, q.pid < 0 && q.cam === null && q.text === null ? q.name : labels.join(" · ")));
  };

  return card(model, el, "list", ({ head, body, foot, root }, changed) => {
    const now = model.get("now"), { k, title } = model.get("ui"), chosen = model.get("select");
    if (changed.has("now")) at = Math.min(at, Math.max(0, (now.items ?? []).length - 1));
    const page = Math.min(model.get("ui").page, pages() - 1);
    if (Math.floor(at / k) !== page) at = page * k;
    const focused = root.contains(root.ownerDocument.activeElement) && root.ownerDocument.activeElement.dataset.at !== undefined;
    const items = (now.items ?? []).slice(page * k, page * k + k), n = (now.items ?? []).length;
    fill(head,
      h("span", { class: "rl-title" }, title || "Ranked list"),
      h("span", { class: "rl-group" }, button("previous query", "‹", () => step(-1)),
        h("span", {}, chosen.query === null ? "no query" : `query ${chosen.query}`), button("next query", "›", () => step(1)),
        h("span", { class: "rl-mute" }, `of ${model.get("fixed").n_query}`)),
      h("span", { class: "rl-mute" }, now.summary ?? ""),
      n > k ? h("span", { class: "rl-group rl-push" }, button("previous page", "‹", () => turn(page - 1), page === 0),
        h("span", {}, `${page * k + 1}–${Math.min(n, page * k + k)} of ${n}`),
        button("next page", "›", () => turn(page + 1), page + 1 >= pages())) : null);
    fill(body, now.query ? query(now.query) : null, now.message ? h("p", { class: "rl-message" }, now.message)
      : h("ol", { role: "listbox", "aria-label": "results, best first", "aria-multiselectable": "true" },
        items.map((item, i) => one(item, page * k + i, chosen.gallery, chosen.camera))));
    fill(foot,
      h("span", {}, h("span", { class: "rl-badge rl-ok" }, "✓"), "same person"), h("span", {}, h("span", { class: "rl-badge rl-no" }, "✕"), "another person"),
      h("span", {}, "← → move · Enter select · ↑ ↓ query · Page ↑ ↓ turn"));
    root.style.setProperty("--rl-k", k);
    root.onkeydown = (event) => keys(event, root);
    if (focused) root.querySelector(`[data-at="${at}"]`)?.focus({ preventScroll: true });
  });
}
