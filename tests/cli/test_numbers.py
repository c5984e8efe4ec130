"Published numbers, metrics and the audit for camera bias, of files of any program"
import json
import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from reid_lab.cli.commands import main
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.ranking import rank


def test_json_is_standard(tmp_path, capsys):
    "What cannot be computed is null, not NaN"
    emb = np.eye(4, dtype=np.float32)
    for side in "qg": np.savez(tmp_path/f"{side}.npz", emb=emb, pid=np.arange(4), cam=np.zeros(4, int))
    args = ["metrics", str(tmp_path/"q.npz"), str(tmp_path/"g.npz"), "--same-camera", "keep", "--json"]
    assert main(args) == 0
    def refuse(word): raise ValueError(word)
    assert json.loads(capsys.readouterr().out, parse_constant=refuse)["R1"] == 100
    from reid_lab.cli.numbers import json_line
    assert json.loads(json_line(dict(a=float("nan"), b=[np.float32(1)])), parse_constant=refuse) == dict(a=None, b=[1.])


@pytest.mark.parametrize("junk, says", [
    ("cam,clothes", "with its camera or clothes"), ("cam=1:0", "camera 0 where the query is of camera 1"),
    ("none", "left out: nothing"), ("auto", "by its own camera")])
def test_metrics_by_a_rule_of_junk(tmp_path, capsys, junk, says):
    rng, files = np.random.default_rng(0), []
    for name, n in (("q", 20), ("g", 80)):
        columns = dict(clothes=np.array(["red", "blue", ""])[rng.integers(0, 3, n)])
        e = Embeddings(rng.normal(size=(n, 8)), rng.integers(0, 5, n), rng.integers(0, 3, n), columns=columns)
        files.append(str(e.save(tmp_path/f"{name}.npz")))
    want = retrieval_metrics(*map(Embeddings.load, files), junk=junk)
    assert main(["metrics", *files, "--junk", junk, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mAP"] == pytest.approx(want["mAP"]) and found["junk"] == want.junk == junk.replace("auto", "cam")
    assert main(["metrics", *files, "--junk", junk]) == 0
    out = capsys.readouterr().out
    assert says in out and ("clothes is unknown for" in out) == ("clothes" in junk)


def test_published(capsys):
    assert main(["published"]) == 0 and "dart3" in capsys.readouterr().out
    assert main(["published", "camel", "I"]) == 0 and "77.24" in capsys.readouterr().out
    assert main(["published", "camel", "I", "--format", "latex"]) == 0 and r"\begin{tabular}" in capsys.readouterr().out
    assert main(["published", "camel", "Z"]) == 2 and "choose one of" in capsys.readouterr().err


def test_metrics_of_own_features(tmp_path, capsys):
    eye = np.eye(4, dtype=np.float32)
    np.savez(tmp_path/"q.npz", features=eye, pid=np.arange(4), cam=np.zeros(4, int))
    np.savez(tmp_path/"g.npz", features=np.vstack([eye, eye[::-1]]), pid=[0, 1, 2, 3, 3, 2, 1, 0], cam=np.ones(8, int))
    assert main(["metrics", str(tmp_path/"q.npz"), str(tmp_path/"g.npz"), "--key", "emb=features", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["R1"] == found["mAP"] == 100 and found["n_query"] == 4
    assert main(["metrics", str(tmp_path/"q.npz"), str(tmp_path/"gone.npz")]) == 2
    assert re.match("reid_lab metrics: .*", capsys.readouterr().err)


def test_metrics_of_an_open_set(tmp_path, capsys):
    rng = np.random.default_rng(0)
    who, pid = rng.normal(size=(60, 24)), np.tile(np.arange(60), 4)
    for name in ("q", "g"):
        np.savez(tmp_path/f"{name}.npz", emb=np.float32(who[pid] + .5*rng.normal(size=(240, 24))), pid=pid,
                 cam=np.repeat([0, 1, 2, 3], 60))
    files = [str(tmp_path/"q.npz"), str(tmp_path/"g.npz")]
    assert main(["metrics", *files, "--open-set"]) == 0
    out = capsys.readouterr().out
    assert "FNIR % [95 %]" in out and "10 %     all" in out and "cam 3" in out and "1 %     all" in out
    assert "Warning: Too few people for FPIR 1 %: a threshold rests on 30" in out
    assert main(["metrics", *files, "--open-set", ".05", ".2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(r["FPIR_asked"], r["group"]): r for r in found["open_set"]}
    assert len(rows) == 10 and rows[.05, "all"]["FNIR_low"] <= rows[.05, "all"]["FNIR"] <= rows[.05, "all"]["FNIR_high"]
    assert rows[.2, "all"]["FNIR"] <= rows[.05, "all"]["FNIR"] and found["mAP"] > 50
    assert rows[.2, "cam 1"]["present"] == 60
    for wrong in ("5", "much"):
        with pytest.raises(SystemExit, match="2"): main(["metrics", *files, "--open-set", wrong])
        assert f"--open-set: {wrong!r} must be a number between 0 and 1" in capsys.readouterr().err
    assert main(["metrics", *files, "--json"]) == 0 and "open_set" not in json.loads(capsys.readouterr().out)


@pytest.fixture
def features(tmp_path):
    "Files of 12 people under two cameras, the second shifted"
    rng = np.random.default_rng(0)
    who, pid, cam = rng.normal(size=(12, 6)), np.tile(np.arange(12), 2), np.repeat([0, 1], 12)
    for name in ("q", "g"):
        emb = np.float32(np.tile(who, (2, 1)) + .3*rng.normal(size=(24, 6)) + 4*cam[:, None])
        np.savez(tmp_path/f"{name}.npz", emb=emb, pid=pid, cam=cam)
    return tmp_path, dict(emb=emb, pid=pid, cam=cam)


def test_bias_prints_and_writes(features, capsys):
    d, _ = features
    assert main(["bias", str(d/"q.npz"), str(d/"g.npz"), "--out", str(d/"new"/"report")]) == 0
    out = capsys.readouterr().out
    assert "No adaptation" in out and "helps: mAP " in out and "Warning: Cameras with fewer" not in out
    assert "12 of 12 people are scored" in out
    assert "report: " in out
    assert sorted(p.name for p in (d/"new"/"report").iterdir()) == ["figures", "open_set.csv", "per_camera.csv",
                                                                    "report.html", "report.md", "summary.csv"]
    assert "q.npz and g.npz" in (d/"new"/"report"/"report.html").read_text()
    assert main(["bias", str(d/"q.npz"), "--out", str(d/"new"/"report")]) == 2
    assert "report exists; give --out a new folder" in capsys.readouterr().err


def test_bias_opens_a_page(features, capsys, monkeypatch):
    d, e = features
    monkeypatch.chdir(d)
    assert main(["bias", "q.npz", "g.npz", "--open"]) == 0
    assert "page: camera_bias.html" in capsys.readouterr().out
    page = (d/"camera_bias.html").read_text(encoding="utf-8")
    assert page.count('<div id="view-') == 5 and "default-src 'none'" in page and "q.npz and g.npz" in page
    for args, words in ((["g.npz"], "camera_bias.html exists; move it, or give --out"), ([], "give both files")):
        assert main(["bias", "q.npz", *args, "--open"]) == 2
        assert words in capsys.readouterr().err
    np.savez(d/"unknown.npz", emb=e["emb"], cam=e["cam"])
    assert main(["bias", "unknown.npz", "unknown.npz", "--open", "--out", "shown"]) == 0
    assert "mAP is not defined" in (d/"shown"/"cockpit.html").read_text(encoding="utf-8")


def test_bias_as_json_and_without_people(features, capsys):
    d, e = features
    np.savez(d/"theirs.npz", features=e["emb"], camera=e["cam"])
    keys = ["--key", "emb=features", "cam=camera"]
    assert main(["bias", str(d/"theirs.npz"), *keys, "--json", "--distance", "euclidean", "--map", "none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["advised"] is None and found["summary"][0]["mAP"] is None
    assert found["summary"][0]["nmi_identity"] is None
    assert found["summary"][0]["camera_share"] > .3 and [c["n_query"] for c in found["cameras"]] == [12, 12]
    assert main(["bias", str(d/"theirs.npz"), str(d/"theirs.npz"), *keys]) == 0
    assert "No identity is known on both sides" in capsys.readouterr().out


@pytest.mark.parametrize("change, words", [
    (dict(cam=None), r"has no \['cam'\]; it holds"), (dict(emb=None), r"has no \['emb'\]"),
    (dict(emb="nan"), "NaN or infinite values in 1 of 24"),
    (dict(emb="int"), "has dtype int64"), (dict(emb="flat"), r"must be \(N,D\)"),
    (dict(cam="one"), "single camera there is no bias"),
    (dict(cam="short"), r"cam has shape \(3,\)"), (dict(pid="text"), "have names"),
    (dict(pid="other"), "has a match in the"), (dict(emb="thin"), "did one model make both")])
def test_bias_says_in_one_line_what_is_wrong(features, capsys, change, words):
    d, e = features
    bad = dict(e)
    for k, v in change.items():
        if v is None: del bad[k]
        elif v == "nan":
            bad[k] = e[k].copy()
            bad[k][3, 1] = np.nan
        else:
            bad[k] = {"int": e["emb"].astype(int), "flat": e["emb"][0], "thin": e["emb"][:, :2], "one": 0*e["cam"],
                      "short": e["cam"][:3], "text": np.array(["x"]*24), "other": e["pid"] + 100}[v]
    np.savez(d/"bad.npz", **bad)
    good = "bad.npz" if change == dict(cam="one") else "q.npz"
    assert main(["bias", str(d/good), str(d/"bad.npz"), "--out", str(d/"out")]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and re.match("reid_lab bias: ", err) and re.search(words, err)
    assert not (d/"out").exists()


@pytest.mark.parametrize("words, says", [
    (["match", "q", "crops", "--model", "transreid_tiny", "--junk", "clothes"],
     ["crops has no column 'clothes', which --junk clothes reads", "--junk none", "It has", "groups of --pattern"]),
    (["match", "q", "bare", "--junk", "cam,clothes"], ["bare.npz has no column 'clothes'", "--junk cam,clothes"]),
    (["metrics", "q", "bare", "--junk", "clothes"], ["bare.npz has no column 'clothes'", "--junk clothes"]),
    (["bias", "q", "bare", "--junk", "clothes"], ["bare.npz has no column 'clothes'", "--junk clothes"]),
    (["compare", "q", "--junk", "site"], ["--junk site needs the column 'site', which the", "`reid_lab embed`"]),
    (["match", "q", "crops", "--model", "transreid_tiny", "--junk", "cam"],
     ["crops has no column 'cam'", "(--folders"]),
    (["compare", "transreid_tiny", "--on", "people", "--junk", "clothes"],
     ["--junk clothes needs the column 'clothes'", "--junk none"])])
def test_a_rule_that_lacks_a_column_is_refused_in_options_before_anything_is_embedded(words, says, tmp_path, capsys,
                                                                                      monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("reid_lab.recipes.crops.embed_images", lambda *a, **kw: pytest.fail("embedded"))
    monkeypatch.setattr("reid_lab.recipes.compare.embed_images", lambda *a, **kw: pytest.fail("embedded"))
    rng, places = np.random.default_rng(0), {}
    for name, columns in (("q", dict(clothes=np.array(["red", "blue"])[rng.integers(0, 2, 20)])), ("bare", {})):
        e = Embeddings(rng.normal(size=(20, 8)), rng.integers(0, 5, 20), rng.integers(0, 3, 20), columns=columns)
        places[name] = str(e.save(tmp_path/f"{name}.npz"))
    for i in range(4):
        for path in (tmp_path/"crops"/f"{i}.png", tmp_path/"people"/str(i//2)/f"{i}.png"):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((32, 16, 3), 40*i, np.uint8)).save(path)
    assert main([places.get(word, word) for word in words]) == 2
    err = capsys.readouterr().err
    assert all(text in err for text in says), err
    assert "Embeddings" not in err and "junk=" not in err and "columns=" not in err


@pytest.fixture(scope="module")
def two_modalities(tmp_path_factory):
    "A file of features with the columns that SYSU-MM01's rule reads"
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("sysu")/"test.npz"
    pid, cam = np.arange(96) % 4, np.arange(96)//4 % 6 + 1
    emb = np.random.default_rng(1).normal(size=(4, 8))[pid] + rng.normal(size=(96, 8))
    names = [f"cam{c}/{p:04}/{i:04}.jpg" for i, (c, p) in enumerate(zip(cam, pid))]
    Embeddings(emb.astype("f4"), pid, cam, names,
               columns=dict(modality=np.where(np.isin(cam, (3, 6)), "infrared", "visible"))).save(path)
    return str(path)


def test_metrics_by_a_protocol(two_modalities, capsys):
    file = two_modalities
    assert main(["metrics", file, file, "--protocol", "sysu.all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    e = Embeddings.load(file)
    want = retrieval_metrics(e, e, protocol="sysu.all")
    assert {name: found[name] for name in want} == pytest.approx(dict(want))
    assert (found["protocol"], found["n_draws"], found["junk"]) == ("sysu.all", 10, "cam=3:2")
    assert main(["metrics", file, file, "--protocol", "sysu.all"]) == 0
    assert "means over 10 draws" in capsys.readouterr().out


def test_metrics_and_comparisons_of_one_draw(two_modalities, capsys):
    "The scores of `--draw` are those that the mean is made of"
    file, e = two_modalities, Embeddings.load(two_modalities)
    want = retrieval_metrics(e, e, protocol="sysu.all").draws[3]
    words = ["metrics", file, file, "--protocol", "sysu.all", "--draw", "3"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in ("R1", "mAP", "mINP", "n_query")} == pytest.approx(
        {name: want[name] for name in ("R1", "mAP", "mINP", "n_query")})
    assert (found["protocol"], found["draw"]) == ("sysu.all", 3)
    assert found["rows"]["gallery"]["rows"] < found["rows"]["gallery"]["given"]      # of all images, one draw
    assert main(words) == 0
    assert "draw 3 alone, of 0 to 9; without --draw scores are means over all" in capsys.readouterr().out
    assert main(["compare", f"ours={file},{file}", "--protocol", "sysu.all", "--draw", "3"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "protocol sysu.all, draw 3 of 0 to 9" in out and f"{want['mAP']:.1f}" in out


@pytest.mark.parametrize("words, says", [
    (["--protocol", "ltcc.cc"], "has no column 'clothes', which --protocol ltcc.cc reads for its queries"),
    (["--protocol", "market", "--junk", "cam"], "give one of the two"),
    (["--protocol", "market", "--same-camera", "keep"], "give one of the two"),
    (["--protocol", "market", "--open-set"], "leave --open-set out"),
    (["--protocol", "sysu.al"], "near names are sysu.all")])
def test_protocols_that_clash_are_refused(two_modalities, capsys, words, says):
    try: code = main(["metrics", two_modalities, two_modalities, *words])
    except SystemExit as e: code = e.code
    assert code and says in capsys.readouterr().err


@pytest.mark.parametrize("name, draw", [("sysu.all", 3), ("market", 0)])
def test_match_lists_a_draw_of_a_protocol(two_modalities, tmp_path, capsys, name, draw):
    file, e = two_modalities, Embeddings.load(two_modalities)
    words = ["match", file, file, "--protocol", name, *(["--draw", str(draw)] if draw else []), "-k", "4"]
    assert main([*words, "--json", "--html", str(tmp_path/"page.html")]) == 0
    found = pd.DataFrame(json.loads(capsys.readouterr().out))
    want, _ = rank(e, e, 4, protocol=name, draw=draw)
    got = np.full_like(want, -1)
    got[found.a, found["rank"] - 1] = found.b
    np.testing.assert_array_equal(got, want)
    assert (found.protocol == name).all() and (found.draw == draw).all()
    page = (tmp_path/"page.html").read_text(encoding="utf-8")
    assert f"protocol {name}" in page and ("draw 3 of 0 to 9" in page) == (draw == 3)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"lists of protocol {name}" in out and "took part: " in out


@pytest.mark.parametrize("words, says", [
    (["match", "F", "F", "--draw", "1"], "--draw 1 is of a protocol that draws; give --protocol sysu.all"),
    (["match", "F", "F", "--protocol", "market", "--draw", "1"], "draws nothing: leave --draw out"),
    (["bias", "F", "F", "--protocol", "sysu.all", "--draw", "10"], "has draws 0 to 9"),
    (["metrics", "F", "F", "--draw", "1"], "--draw 1 is of a protocol that draws; give --protocol sysu.all"),
    (["metrics", "F", "F", "--protocol", "sysu.all", "--draw", "10"], "has draws 0 to 9"),
    (["compare", "F", "--protocol", "sysu.all", "--draw", "10"], "has draws 0 to 9"),
    (["match", "F", "F", "--protocol", "ltcc.cc"], "has no column 'clothes', which --protocol ltcc.cc reads"),
    (["match", "F", "F", "--protocol", "market", "--junk", "cam"], "give one of the two"),
    (["search", "F", "a man", "--protocol", "market"], "a sentence has no camera; leave it out here"),
    (["search", "F", "--image", "crop.png", "--protocol", "market"], "a crop has no person and no camera")])
def test_a_protocol_where_it_makes_no_sense_is_refused(two_modalities, capsys, words, says):
    assert main([two_modalities if word == "F" else word for word in words]) == 2
    assert says in capsys.readouterr().err


def test_bias_reports_the_draw_that_is_named(two_modalities, capsys):
    e = Embeddings.load(two_modalities)
    assert main(["bias", two_modalities, two_modalities, "--protocol", "sysu.indoor", "--draw", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["protocol"]["draw"] == 4 and found["protocol"]["n_draws"] == 10
    first = next(row for row in found["summary"] if row["distance"] == "cosine")
    assert first["mAP"] == pytest.approx(retrieval_metrics(e, e, protocol="sysu.indoor").draws[4]["mAP"])


def test_bias_reports_the_first_draw_of_a_protocol(two_modalities, capsys):
    assert main(["bias", two_modalities, two_modalities, "--protocol", "sysu.indoor"]) == 0
    assert "protocol: sysu.indoor, draw 0 of 0 to 9; R1 is that of images here" in capsys.readouterr().out
    assert main(["bias", two_modalities, "--protocol", "sysu.indoor"]) == 2
    assert "one file twice" in capsys.readouterr().err


def test_a_dataset_is_listed_with_its_record(capsys):
    assert main(["list", "datasets", "veri-776"]) == 0
    text = capsys.readouterr().out
    for words in ("VeRi-776", "layout: VeRi/", "query: 200 ids, 1,678 images", "train: unstated ids, 37,778 images",
                  "protocols: veri.trapezoid, veri.rectangle", "access: on request", "licence: non-commercial",
                  "source: VehicleReId/VeRi"):
        assert words in text
    assert main(["list", "datasets", "luperson"]) == 0
    assert "test: no published number is recorded" in capsys.readouterr().out
    assert main(["list", "datasets", "market1501"]) == 0
    assert "gallery: 751 ids, 19,732 or 15,913 images" in capsys.readouterr().out


def test_a_protocol_is_listed_as_a_methods_section(capsys):
    assert main(["list", "protocols", "prcc.single-changed"]) == 0
    text = capsys.readouterr().out
    for part in ("71 gallery", "one image for each person, drawn 10 times", "their mAP cannot be compared"):
        assert part in text


@pytest.fixture(scope="module")
def split_with_roles(tmp_path_factory):
    "A manifest of a training and a test split, whose test rows have roles"
    root, rng, rows = tmp_path_factory.mktemp("roles"), np.random.default_rng(0), []
    for i in range(20):
        Image.fromarray(rng.integers(0, 255, (32, 16, 3), np.uint8)).save(root/f"{i}.png")
        role = "both" if i < 6 else ("query" if i % 3 == 0 else "gallery")
        split = "train" if i < 6 else "test"
        rows.append(dict(path=f"{i}.png", pid=i % 4 + 4*(i < 6), cam=i//3 % 2, split=split, role=role))
    pd.DataFrame(rows).to_csv(root/"m.csv", index=False)
    return root


def test_embedded_roles_part_a_test_split_under_a_protocol(split_with_roles, capsys):
    root = split_with_roles
    for out, more in (("whole", ()), ("q", ("--role", "query")), ("g", ("--role", "gallery"))):
        words = ["embed", str(root/"m.csv"), "--model", "bot_tiny", "--out", str(root/out), "--split", "test", *more]
        assert main(words) == 0
    assert [len(Embeddings.load(root/name)) for name in ("whole", "q", "g")] == [14, 5, 9]
    capsys.readouterr()
    found = []
    for files in (("whole", "whole"), ("q", "g")):
        assert main(["metrics", *(str(root/name) for name in files), "--protocol", "market", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    for name in ("R1", "mAP", "n_query", "n_gallery"): assert found[0][name] == pytest.approx(found[1][name])
    assert found[0]["n_query"] + found[0]["n_skipped"] == 5


@pytest.mark.parametrize("words, says", [
    (["--split", "val"], "--split val: no image is of that split; there are test (14), train (6)"),
    (["--split", "train", "--role", "query"], "--role query: all images of the split train may ask and be searched"),
    (["--role", "query"], "images of several splits have it, or both; there are test (14), train (6). Add --split")])
def test_splits_and_roles_that_are_not_there_are_refused(split_with_roles, words, says, capsys):
    given = ["embed", str(split_with_roles/"m.csv"), "--model", "bot_tiny", "--out", str(split_with_roles/"no"), *words]
    assert main(given) == 2 and says in capsys.readouterr().err


def test_images_of_several_splits_are_said(split_with_roles, capsys):
    root = split_with_roles
    assert main(["embed", str(root/"m.csv"), "--model", "bot_tiny", "--out", str(root/"mixed")]) == 0
    assert "several splits: test (14), train (6)" in capsys.readouterr().err


def test_features_of_a_whole_dataset_are_scored_by_their_test_split(split_with_roles, capsys):
    root = split_with_roles
    for out, more in (("all", ()), ("tested", ("--split", "test"))):
        assert main(["embed", str(root/"m.csv"), "--model", "bot_tiny", "--out", str(root/out), *more]) == 0
    capsys.readouterr()
    found = []
    for name in ("all", "tested"):
        assert main(["metrics", *[str(root/name)]*2, "--protocol", "market", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    for name in ("R1", "mAP", "n_query", "n_gallery"): assert found[0][name] == pytest.approx(found[1][name])
    assert found[0]["rows"]["gallery"]["left_out"]["split is not test"] == 6 and found[0]["rows"]["split"] == "test"
    assert main(["metrics", *[str(root/"all")]*2]) == 0
    assert "several splits are compared, test (14), train (6)" in capsys.readouterr().err


def test_a_manifest_without_splits_is_told_apart_from_a_test_split(split_with_roles, capsys):
    root = split_with_roles
    pd.read_csv(root/"m.csv").drop(columns="split").to_csv(root/"unsaid.csv", index=False)
    words = ["embed", str(root/"unsaid.csv"), "--model", "bot_tiny", "--out", str(root/"unsaid")]
    assert main([*words, "--split", "test"]) == 2
    assert "--split test: nothing says of which split an image is" in capsys.readouterr().err
    assert main(words) == 0 and "split" not in Embeddings.load(root/"unsaid").columns
    assert main(["doctor", str(root/"unsaid.csv")]) == 0
    assert "split: not said, so that all count as test" in capsys.readouterr().out
    assert main(["metrics", *[str(root/"unsaid")]*2, "--protocol", "market"]) == 0
    assert "split: unknown, so that rows of training would count too" in capsys.readouterr().out
    assert main(["doctor", str(root/"m.csv")]) == 0
    assert "split: test 14, train 6" in capsys.readouterr().out


def test_what_a_protocol_scored_is_counted_beside_its_printed_counts(two_modalities, capsys):
    file = two_modalities
    assert main(["metrics", file, file, "--protocol", "sysu.indoor", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows["queries"] == dict(given=96, rows=32, left_out={"modality is not infrared": 64})
    assert (rows["gallery"]["given"], rows["gallery"]["rows"]) == (96, 8)
    assert rows["gallery"]["left_out"] == {"modality is not visible": 32, "cam is not 1 or 2": 32, "not drawn": 24}
    assert rows["printed"] == dict(queries=3803, skipped=1595, gallery=112, people=96)
    assert list(rows["pairs_left_out"]) == ["cam=3:2"] and rows["pairs_left_out"]["cam=3:2"] > 0
    assert main(["metrics", file, file, "--protocol", "sysu.indoor"]) == 0
    text = capsys.readouterr().out
    assert "took part: 32 of 96 queries, 8 of 96 gallery images; left out: queries, modality is not infrared" in text
    assert "printed: 3,803 queries, 1,595 skipped, 112 gallery" in text
    assert "another number here of queries and gallery" in text
    assert f"pairs of a query and an image left out: cam=3:2: {rows['pairs_left_out']['cam=3:2']:,}" in text


def test_a_bias_report_has_the_average_precision_of_its_protocol_and_says_which_it_is(two_modalities, capsys, tmp_path):
    file, precision = two_modalities, {}
    for name in ("market", "market.trapezoid"):
        assert main(["metrics", file, file, "--protocol", name, "--json"]) == 0
        precision[name] = json.loads(capsys.readouterr().out)["mAP"]
    assert abs(precision["market"] - precision["market.trapezoid"]) > .1
    words = ["--protocol", "market.trapezoid", "--json", "--map", "none", "--out", str(tmp_path/"report")]
    assert main(["bias", file, file, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    precision_of = {(row["method"], row["distance"]): row["mAP"] for row in found["summary"]}
    assert precision_of["No adaptation", "cosine"] == pytest.approx(precision["market.trapezoid"], abs=1e-4)
    assert {name: found["protocol"][name] for name in ("name", "draw", "n_draws", "ap")} == dict(
        name="market.trapezoid", draw=0, n_draws=1, ap="trapezoid")
    for kept in ("report.md", "report.html"):
        text = (tmp_path/"report"/kept).read_text().replace("\\", "")
        for part in ("Protocol market.trapezoid: ", "AP is the area by trapezoids.", "Took part: 96 of 96 queries"):
            assert part in text
