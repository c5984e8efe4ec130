"Failures are those of the ranking, and marks are kept in a file that others write too"
from pathlib import Path

import pytest
from helpers.views import embedded
from traitlets import TraitError

from reid_lab.analysis.tags import read_tags, tag
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.failures import FailureBrowser, _in_unit
from reid_lab.widgets.scene import Scene


def failing_scene(**kw):
    "Queries of which some fail, because they lie near another person"
    e = embedded()
    emb = e.emb.clone()
    emb[:6] = emb[21:27]                                            # rows 20 to 59 are the gallery
    moved = Embeddings(emb, e.pid, e.cam, path=e.path)
    return Scene(moved[:20], moved[20:], **kw)


def test_failures_are_marked_in_a_file_that_others_write_too(tmp_path):
    path, scene = tmp_path/"tags.csv", failing_scene()
    view, said = FailureBrowser(scene, tags=path, by="ann"), []
    worst = view.frame["query"].iloc[:2].tolist()
    assert view.frame.failed[:2].all() and view.frame.AP.is_monotonic_increasing
    view.receive(dict(mark=dict(query=worst[0], mark="tick")))
    tag(path, view.frame.key[0], "bob", "cross", comment="=no")
    view.receive(dict(mark=dict(query=worst[0], comment="both wear red")))
    rows = read_tags(path).set_index("by")
    assert rows.mark.to_dict() == dict(ann="tick", bob="cross") and rows.comment["ann"] == "both wear red"
    one = view.content(worst[0])["one"]
    assert one["note"]["mark"] == "tick" and one["others"] == ["bob: cross =no"]
    assert view.rows("tick")["query"].tolist() == worst[:1] and worst[0] not in view.rows("open")["query"].tolist()
    view.show_message = said.append
    for wrong in (dict(query=worst[0], mark="maybe"), dict(query=99, mark="tick")): view.receive(dict(mark=wrong))
    assert len(said) == 2 and "maybe" in said[0] and len(read_tags(path)) == 2
    path.write_text("damaged")
    view.receive(dict(mark=dict(query=worst[1], mark="tick")))
    assert path.read_text() == "damaged" and "tags.csv" in said[2]      # said, not overwritten
    view.receive(dict(figure=1))
    assert {p.name for p in tmp_path.glob("failures.*")} == {"failures.pdf", "failures.png"}, said


def test_failures_are_those_of_the_ranking():
    view = FailureBrowser(failing_scene(query=0))
    scene, before = view.scene, view.frame.failed.sum()
    reason = view.rates.reason[0]
    view.set(show="all", reason=reason)
    assert set(view.rows()["query"]) == set(view.frame["query"][view.frame[f"{reason} holds"]])
    assert [_in_unit(*x) for x in ((1., "0 or 1"), (.966, "share of other people"), (1., "share"), (1., "attributes"),
                                 (2., "identities"), (.6449, "of the median"))] == [
        "yes", "97 % of other people", "100 %", "1 attribute", "2 identities", "0.645 of the median"]
    scene.scores = (scene.q.pid[:, None] == scene.g.pid[None]).astype("f4")
    view.set(show="failures", reason="")
    assert "0 of" in view.content(0)["summary"] and not len(view.rows()) and before > 0
    assert view.picture().startswith(b"\x89PNG")


def test_the_list_is_as_long_as_is_asked_for():
    view = FailureBrowser(failing_scene(query=0), most=3)
    assert view.most == 3 and len(view.fixed()["rows"]) == 3 < len(view.frame)
    before = view.version()
    view.most = 2
    assert len(view.fixed()["rows"]) == 2 and view.version() is not before     # and is sent again
    with pytest.raises(TraitError): FailureBrowser(view.scene, most=0)
    assert FailureBrowser(view.scene).most == 2000


def test_a_lost_image_leaves_the_other_reasons(tmp_path):
    from PIL import Image

    from reid_lab.data.images import read_image
    for i in range(60): Image.new("RGB", (32, 64), (4*i, 9, 200 - 3*i)).save(tmp_path/f"{i}.jpg")
    scene, facts = failing_scene(query=0), dict(read=lambda paths: [read_image(tmp_path/Path(p).name) for p in paths])
    assert "same colours" in set(FailureBrowser(scene, facts).rates.reason)
    for i in range(20, 60): (tmp_path/f"{i}.jpg").unlink()
    view = FailureBrowser(scene, facts)
    assert "same colours" not in set(view.rates.reason) and "same camera" in set(view.rates.reason)
    assert "not measured" in view.content(0)["summary"] and view.picture().startswith(b"\x89PNG")
