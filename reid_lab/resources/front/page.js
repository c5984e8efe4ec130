// A page without a kernel: one selection for all views, and what each view draws for every query, computed before.
function startPage(views, start, libraries) {
  const chosen = { ...start };
  const models = views.map((view) => {
    const listeners = {};
    const own = { fixed: view.fixed, ui: { ...view.ui } };
    const fire = (name, ...args) => [...(listeners[name] ?? [])].forEach((f) => f(...args));
    const now = () => { // without one word, of one word, or of the query as a whole
      const q = String(chosen.query ?? "none"), keys = [chosen.words.length === 1 ? `${q}/${chosen.words[0]}` : "", `${q}@${own.ui.word}`, q];
      const key = keys.find((k) => k in view.pages);
      return key === undefined ? { label: view.kind, message: `Query ${q} is not on this page.` } : view.pages[key];
    };
    return {
      fire,
      get: (name) => (name === "select" ? { ...chosen } : name === "now" ? now() : own[name]),
      on: (name, f) => (listeners[name] ??= new Set()).add(f),
      off: (name, f) => listeners[name]?.delete(f),
      send(message) {
        if (message.select) {
          if ("query" in message.select && message.select.query !== chosen.query) chosen.words = [];
          Object.assign(chosen, message.select);
          models.forEach((m) => { m.fire("change:select"); m.fire("change:now"); });
        }
        if (message.ui) {
          Object.assign(own.ui, message.ui);
          fire("change:ui");
          if ("word" in message.ui) fire("change:now");
        }
        if (message.need) {
          const bytes = Uint8Array.from(atob(libraries[message.need]()), (c) => c.charCodeAt(0));
          queueMicrotask(() => fire("msg:custom", { library: message.need }, [bytes]));
        }
      },
    };
  });
  views.forEach((view, i) => view.render({ model: models[i], el: document.getElementById(`view-${i}`) }));
}
