"Settings of Sphinx for the site that build.py makes; nothing is fetched, neither when it is built nor when it is read"
from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from navigation import connect

project, author, copyright = "reid_lab", "reid_lab authors", "2026 onwards, reid_lab authors"
extensions = ["myst_nb"]
root_doc, language = "index", "en"
exclude_patterns, templates_path = ["figures", "_templates"], ["_templates"]
html_theme, html_title = "furo", "reid_lab"
html_static_path, html_css_files, html_js_files = ["_static"], ["site.css"], [("copy.js", dict(defer="defer"))]
html_extra_path = ["llms.txt", "all_results.html"]
html_copy_source = html_show_sourcelink = False
html_math_renderer = "mathml"
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # outputs: CommonMark, the default, shows a table as running text
nb_mime_priority_overrides = [("html", "image/png", 10), ("html", "image/jpeg", 11), ("html", "text/html", 20)]
myst_enable_extensions = ["dollarmath", "html_image", "colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure", "myst.header"]


def formula(node, display):
    "LaTeX as MathML, which browsers draw themselves"
    return convert(node.astext(), display=display)


def inline(self, node):
    self.body.append(formula(node, "inline"))
    raise SkipNode


def block(self, node):
    self.body.append(f'<div class="formula">{formula(node, "block")}</div>')
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    connect(app)
