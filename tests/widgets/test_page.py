"Pages without a kernel: nothing is fetched, and text stays text"
import numpy as np
import pytest
from helpers import ROOT
from helpers.views import EVIL, embedded, make_scene

from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.page import page_html
from reid_lab.widgets.scene import Scene


def test_hostile_text_stays_text(make):
    e = embedded()
    text = Embeddings(e.emb[:20], e.pid[:20], caption=[f"a man {EVIL} in red"]*20)
    gallery = Embeddings(e.emb[20:], e.pid[20:], e.cam[20:], path=[f"{EVIL}{i}.jpg" for i in range(40)],
                         columns=dict(site=np.array([EVIL]*40)))
    view = make(Scene(text, gallery, query=3), title=EVIL)
    page = page_html([view], title=EVIL, queries=[3])
    assert "<img" not in page and "&lt;img" in page and "\\u003cimg" in page
    assert page.count("</script>") == page.count("<script") and view.picture().startswith(b"\x89PNG")


def test_front_ends_write_text_only():
    for path in (ROOT/"reid_lab"/"resources"/"front").glob("*.js"):
        text = path.read_text(encoding="utf-8")
        found = [w for w in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "http:", "https:")
                 if w in text]
        assert not found, (path.name, found)


def test_a_page_needs_nothing_else(make, tmp_path):
    view = make(make_scene(query=1))
    page = view.to_html(tmp_path/"page.html", queries=range(3)).read_text(encoding="utf-8")
    ours = page.split('<script type="text/plain"')[0]
    assert "default-src 'none'" in page and "http:" not in ours and "https:" not in ours
    assert not [a for a in ('src="', 'href="', "@import", "url(") if a in ours]
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(ValueError, match="theme='blue'"): view.to_html(tmp_path/"other.html", theme="blue")
    assert not (tmp_path/"other.html").exists()
