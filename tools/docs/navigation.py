"""The list of all pages that stands beside each page.

Sphinx resolves it for every page anew, and the theme parses it again: with hundreds of pages this is most of a build.
The list is the same everywhere but for the way up and the page that is open, so it is read from Sphinx once a site."""
from html import escape

from sphinx import addnodes


class Navigation:
    "Captions and titles of a site's pages, as the theme lays them out"

    def __init__(self):
        self.groups = []    # (caption, [(page, title as HTML)])

    def read(self, builder):
        "What the trees of the root page hold, once all pages are read"
        env = builder.env
        trees = env.get_doctree(env.config.root_doc).findall(addnodes.toctree)
        self.groups = [(tree["caption"], [(page, builder.render_partial(env.titles[page])["title"])
                                          for _, page in tree["entries"]]) for tree in trees]

    def html(self, builder, current):
        "The list as it stands beside the page `current`"
        def entry(page, title):
            if page == current:
                return ('<li class="toctree-l1 current current-page"><a class="current reference internal" href="#">'
                        f"{title}</a></li>")
            link = escape(builder.get_relative_uri(current, page))
            return f'<li class="toctree-l1"><a class="reference internal" href="{link}">{title}</a></li>'

        lines = []
        for caption, entries in self.groups:
            is_open = any(page == current for page, _ in entries)
            lines.append(f'<p class="caption" role="heading"><span class="caption-text">{escape(caption)}</span></p>')
            lines.append('<ul class="current">' if is_open else "<ul>")
            lines += [entry(page, title) for page, title in entries]
            lines.append("</ul>")
        return "\n".join(lines)


def connect(app):
    "Give each page this list in place of the theme's, which is made at priority 500"
    navigation = Navigation()

    def leave_to_us(app, page, template, context, doctree):
        context["toctree"] = lambda **options: ""

    def give(app, page, template, context, doctree):
        if not navigation.groups: navigation.read(app.builder)
        context["furo_navigation_tree"] = navigation.html(app.builder, page)

    app.connect("html-page-context", leave_to_us, priority=400)
    app.connect("html-page-context", give, priority=600)
