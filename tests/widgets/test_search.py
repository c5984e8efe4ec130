"A search page says what it cannot do"
from helpers.views import make_scene

from reid_lab.analysis.open_set import Threshold
from reid_lab.widgets.search import SearchPage


def test_a_search_page_says_what_it_cannot_do():
    scene = make_scene(query=1)
    page = SearchPage(scene, threshold=Threshold(2., .1, .1, 40, 12, gallery=40))
    assert page.content(1)["present"] is False
    assert page.content(1)["remarks"].startswith("2.000, which was saved without the share of people")
    assert not any(i["accepted"] for i in page.content(1)["items"])
    page.receive(dict(ui=dict(question="a man")))
    assert "No model was given" in page.content(1)["message"] and "no answer" in repr(page)
    scene.selection.query = 5
    assert page.question == "" and "query 5" in repr(page)
    pairs = SearchPage(scene, threshold=Threshold(.1, .1, .1, 9, 9, "fmr"))
    assert "threshold is one for pairs" in pairs.content(1)["message"]
