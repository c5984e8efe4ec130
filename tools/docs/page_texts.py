"Texts that readers and programs find: of pictures for those who do not see them, and of sections for the search"
import json
import re
from html.parser import HTMLParser

SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[])")
ALT = re.compile(r"^#\| *fig-alt: *(.*)$", re.M)
IMAGES = ("image/png", "image/jpeg", "image/svg+xml")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def plain(markdown):
    "Markdown without its marks, on one line"
    text = re.sub(r"```.*?```", " ", markdown, flags=re.S)
    text = re.sub(r"^\s*(?:[|>]|#+ ).*", " ", LINK.sub(r"\1", text), flags=re.M)
    return " ".join(re.sub(r"[*`$\"<>]", "", text).split())


def first_sentence(text, most=180):
    "The first sentence, cut at a word where it is long"
    one = SENTENCE.split(text.strip(), maxsplit=1)[0].rstrip(": ")
    return one if len(one) <= most else one[:most].rsplit(" ", 1)[0] + " …"


def heading_of(markdown):
    "The last heading of a cell, or nothing"
    found = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", markdown, flags=re.S), re.M)
    return plain(found[-1]) if found else ""


def alt_text(source, about, heading, functions):
    """What the pictures of a cell show: its own `#| fig-alt:`, or what the function that drew does, and the text above.

    `functions` holds the docstrings of functions that draw; the last one that a cell calls drew what it shows.
    """
    own = ALT.search(source)
    if own: return own[1].strip().strip("\"'")
    called = [name for name in re.findall(r"\b(\w+)\(", source) if name in functions]
    drawn = functions[called[-1]].split("\n")[0].rstrip(".") if called else ""
    said = first_sentence(about)
    parts = [text for text in (drawn, said) if text] or [heading]
    return ". ".join(text.rstrip(".") for text in dict.fromkeys(parts)) or "Figure of this cell"


def with_alt_texts(cells, title, functions):
    "The cells of a notebook; those that show pictures say what is to be seen"
    about, heading, out = "", title, []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            text = plain(cell["source"])
            about, heading = text or about, heading_of(cell["source"]) or heading
        elif any(kind in o.get("data", {}) for o in cell["outputs"] for kind in IMAGES):
            alt = alt_text(cell.pop("directives", "") + cell["source"], about, heading, functions)
            cell = dict(cell, metadata=dict(mystnb=dict(image=dict(alt=alt))))
        cell.pop("directives", None)
        out.append(cell)
    return out


class Sections(HTMLParser):
    "Title of a page, and its sections as [heading, anchor, text]"
    SKIPPED = ("script", "style", "nav", "button", "math", "svg")

    def __init__(self, html):
        super().__init__()
        self.sections, self.anchors, self.depth, self.skip, self.heading = [], [], 0, 0, False
        start = html.find("<article")       # the rest is navigation, ten times as long
        self.feed(html[start:html.find("</article>", start) + len("</article>")] if start >= 0 else "")

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag == "article": self.depth += 1
        if not self.depth: return
        if tag in self.SKIPPED or "headerlink" in (a.get("class") or ""): self.skip += 1
        elif self.skip and tag == "a": self.skip += 1
        if tag == "section": self.anchors.append(a.get("id", ""))
        if tag in ("h1", "h2", "h3", "h4") and not self.skip:
            self.sections.append(["", self.anchors[-1] if self.anchors else "", ""])
            self.heading = True

    def handle_endtag(self, tag):
        if not self.depth: return
        if self.skip and (tag in self.SKIPPED or tag == "a"): self.skip -= 1
        if tag == "article": self.depth -= 1
        if tag == "section" and self.anchors: self.anchors.pop()
        if tag in ("h1", "h2", "h3", "h4"): self.heading = False

    def handle_data(self, data):
        if not self.depth or self.skip or not self.sections: return
        self.sections[-1][0 if self.heading else 2] += data


def pages_script(site, most=4000):
    "All sections of a built site as a script, for the search; long sections are cut"
    pages = []
    for path in sorted(site.rglob("*.html")):
        url = path.relative_to(site).as_posix()
        if url in ("search.html", "genindex.html"): continue
        found = Sections(path.read_text("utf-8")).sections
        if not found: continue
        sections = [[" ".join(h.split()), anchor, " ".join(text.split())[:most]] for h, anchor, text in found]
        pages.append(dict(url=url, title=sections[0][0], sections=sections))
    return "window.PAGES = " + json.dumps(pages, ensure_ascii=False, separators=(",", ":")) + ";\n"
