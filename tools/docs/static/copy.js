// A button on each block of code that copies it, without the prompts of a terminal.
(() => {
  "use strict";
  const text = block => block.innerText.replace(/^(?:\$|>>>|\.\.\.) /gm, "").replace(/\n$/, "");

  async function copy(content) {
    try { await navigator.clipboard.writeText(content); }
    catch {                                   // a page from a disk may lack the clipboard
      const area = document.createElement("textarea");
      area.value = content;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  for (const block of document.querySelectorAll("div.highlight")) {
    if (block.closest(".cell_output")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      await copy(text(block.querySelector("pre")));
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }
})();
