"""Training for captions: settings, batches, optimiser and scores; CFAM's studies reach what they name."""
import json

import numpy as np
import pytest
import torch
from helpers.released_captions import AWKWARD, released_ids
from PIL import Image

from reid_lab.data.loaders import Batches
from reid_lab.data.text import ClipBPE
from reid_lab.datasets.protocols.text import LEVELS, both_ways, load_setting, text_case, text_setting, transfer_matrix
from reid_lab.datasets.registry import load_dataset
from reid_lab.models.zoo import MODELS, list_models
from reid_lab.recipes import cfan
from reid_lab.recipes.cfam import METHODS, STUDIES, TABLE_8, TITLES, method_settings, run_method, sort_setting
from reid_lab.recipes.study import label, setting_folder
from reid_lab.recipes.text import (
    TEXT_PRESETS,
    load_text,
    loss_gradients,
    masked_tokens,
    new_text_model,
    score_text,
    text_batches,
    text_key,
    text_optimiser,
    text_settings,
    text_tokenizer,
    train_text,
)
from reid_lab.retrieval.embeddings import embed_images, embed_texts
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.training.learner import Callback


@pytest.fixture(scope="module")
def fine(): return load_setting("fine", "smoke")


# --- settings of captions ---------------------------------------------------------------------------------------------

def test_levels_and_styles_share_images_and_differ_in_words():
    tables = {n: load_setting(n, "smoke") for n in (*LEVELS, "fine/generated")}
    paths = [t["path"].tolist() for t in tables.values()]
    assert all(p == paths[0] for p in paths)
    said = {n: t["captions"].tolist() for n, t in tables.items()}
    assert len({json.dumps(s) for s in said.values()}) == len(said)
    words = {n: np.mean([len(c.split()) for cs in s for c in cs]) for n, s in said.items()}
    assert words["coarse"] < words["medium"] < words["fine"] and words["coarse"] < words["mixed"] < words["fine"]
    other = load_setting("fine//generated", "smoke")
    assert set(other["domain"]) == {"generated"} and not {*other["path"]} & {*paths[0]}


@pytest.mark.parametrize("bad, message", [
    (lambda: text_setting("fien"), "Did you mean 'fine'"),
    (lambda: text_setting("fine/real/real-like/more"), "more than"),
    (lambda: text_setting("fine/reel"), "style='reel'"), (lambda: text_setting("fine//real"), "domain='real'"),
    (lambda: text_setting("market1501"), "setting='market1501'"), (lambda: text_case("fine", []), "tests=\\[\\]"),
    (lambda: load_setting("fine", "quik"), "Did you mean 'quick'"),
    (lambda: text_settings(steps=1, stepz=2), "Did you mean 'steps'"), (lambda: text_settings(mask=1.), "mask=1.0"),
    (lambda: text_settings(model="bot_tiny"), "has to read captions"),
    (lambda: text_settings(optimiser="sgd"), "optimiser='sgd'"),
    (lambda: text_settings("smoke", augment="x"), "augment"),
    (lambda: sort_setting(dict(name="cfam", querys=3)), "Did you mean 'queries'"),
    (lambda: sort_setting(dict(name="cfm")), "name='cfm'"),
    (lambda: method_settings(dict(name="start", steps=4)), "method='start' is not trained"),
    (lambda: method_settings(dict(name="irra", queries=4)), "arguments of CFAM"),
    (lambda: run_method(dict(name="cfam"), "quick", seed=501), "was trained on already")])
def test_wrong_settings(bad, message):
    with pytest.raises((ValueError, KeyError), match=message): bad()


def test_matrix_and_directions():
    import pandas as pd
    rows = pd.DataFrame([dict(train=a, test=b, seed=s, R1=10*i + j + 100*s) for s in (0, 1)
                         for i, a in enumerate("xy") for j, b in enumerate("xyz")])
    m = transfer_matrix(rows)
    assert list(m.index) == ["x", "y"] and list(m.columns) == ["x", "y", "z"]
    assert m.loc["y", "z"] == 50 + 12 and transfer_matrix(rows[rows.test != "x"]).shape == (2, 2)
    two = both_ways(rows, "x", "y")
    assert set(two.variant) == {"x -> y", "y -> x"} and len(two) == 4
    with pytest.raises(ValueError, match="b='z'"): both_ways(rows, "x", "z")        # nothing is trained on z


# --- training ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", [n for n in list_models("tiny", reads="captions")
                                  if set(MODELS[n].needs) <= {"tokenizer", "n_ids"}])
def test_any_model_that_reads_captions(name, fine):
    kw = (("size", (64, 32)),)
    done = train_text(fine, "smoke", quiet=True, model=name, model_kw=kw, steps=3)
    assert done.images == 48 and all(np.isfinite(v) for r in done.log for v in r.values())
    scores = score_text(done.model, dict(fine=fine))["fine"]
    assert scores["n_query"] == len(fine.text_queries("test")) and 0 <= scores["mSD"] <= 100


def test_batches_end_with_their_longest_caption_and_are_masked(fine):
    s = text_settings("smoke")
    tok = text_tokenizer(fine, s)
    train = fine.where(split="train")
    plain = Batches(train, 16, (64, 32), tok, 0, "caption").batch(0, 1)
    extras = [masked_tokens(tok)]
    batch = Batches(train, 16, (64, 32), tok, 0, "caption", extras=extras).batch(0, 1)
    n = tok.lengths(plain["tokens"])
    assert batch["tokens"].shape == (16, n.max()) and torch.equal(batch["tokens"], plain["tokens"][:, :n.max()])
    hidden, ids = batch["labels_mlm"] != -100, batch["tokens"]
    assert torch.equal(batch["tokens_mlm"][~hidden], ids[~hidden])
    assert torch.equal(batch["labels_mlm"][hidden], ids[hidden])
    assert not np.isin(ids[hidden].numpy(), tok.special).any()                       # words only
    assert (hidden.sum(1).numpy() == np.maximum(1, np.round(.15*n))).all()
    left_out = train_text(fine, "smoke", quiet=True, mask=0., steps=2)               # works without masks too
    assert "gs_loss" in left_out.log[-1]


def test_batches_of_families(fine):
    "Look-alikes come together; data without families, and what speaks of other batches, are refused"
    family = fine.where(split="train").frame.family.to_numpy()
    def together(batches):
        s = text_settings("smoke", batches=batches)
        loader = text_batches(fine, s, new_text_model(fine, s))
        assert all(len(b) == s.batch_size for b in loader.order(0))
        shown = [family[loader.rows[b]] for epoch in range(4) for b in loader.order(epoch)]
        return np.mean([(f[f >= 0][:, None] == f[f >= 0]).sum() - (f >= 0).sum() for f in shown])
    assert together("families") > 1.5*together("random")
    done = train_text(fine, "smoke", quiet=True, batches="families", steps=2)
    assert done.key["batches"] == "families" and done.images == 32
    on_disk = fine.assign(family=None)
    on_disk.frame = on_disk.frame.drop(columns="family")
    with pytest.raises(ValueError, match="no column 'family'.*batches='random'"):
        train_text(on_disk, "smoke", quiet=True, batches="families")
    with pytest.raises(ValueError, match="batches='alike' is not known"): text_settings("smoke", batches="alike")
    for given in (dict(per_id=2), dict(keep_last=True)):
        with pytest.raises(ValueError, match="leave per_id and keep_last out"):
            text_settings("smoke", batches="families", **given)


@pytest.mark.parametrize("optimiser", ["adamw", "adam"])
def test_every_parameter_has_its_rate(optimiser, fine):
    s = text_settings("smoke", optimiser=optimiser, lr=1e-3, new_mult=5., bias_mult=2.)
    model = new_text_model(fine, s)
    opt, rate = text_optimiser(model, s), {}
    for g in opt.param_groups: rate |= {id(p): g["lr"] for p in g["params"]}
    assert len(rate) == sum(p.requires_grad for p in model.parameters())
    for n, p in model.named_parameters():
        if not p.requires_grad: continue
        want = 1e-3*(5. if n.startswith(tuple(model.new_parts)) else 1.)
        if optimiser == "adam" and n.endswith("bias") and want == 1e-3: want *= 2.   # new parts have one rate
        assert rate[id(p)] == pytest.approx(want), n


def test_keys_tell_trainings_apart(fine):
    def key(table=fine, seed=0, **kw):
        s = text_settings("smoke", **kw)
        return json.dumps(text_key(table, s, seed, text_tokenizer(table, s)), sort_keys=True)
    keys = [key(), key(load_setting("coarse", "smoke")), key(seed=1), key(mask=0.), key(lr=1e-4), key(vocab=300),
            key(model_kw=(("losses", "gs"),)), key(model="irra_tiny"), key(batches="families")]
    assert "batches" not in json.loads(key(batches="random"))       # as in keys of earlier versions
    assert len(set(keys)) == len(keys) and key() == keys[0]


def test_a_trained_folder_is_read_again(fine, tmp_path):
    done = train_text(fine, "smoke", folder=tmp_path / "a", steps=4, quiet=True)
    again = load_text(tmp_path / "a")
    q = fine.text_queries("test").head(9)
    assert torch.equal(embed_texts(done.model, q).emb, embed_texts(again.model, q).emb)
    files = {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match="holds another training"):     # refused before anything is written
        train_text(fine, "smoke", folder=tmp_path / "a", steps=4, vocab=300, quiet=True)
    assert files == {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    (tmp_path / "a" / "tokenizer").rename(tmp_path / "gone")
    with pytest.raises((FileNotFoundError, ValueError), match="tokenizer"): load_text(tmp_path / "a")


def test_scores_are_those_of_the_split(fine):
    model = new_text_model(fine, text_settings("smoke")).eval()
    q, g = embed_texts(model, fine.text_queries("val")), embed_images(model, fine.gallery("val"))
    want = retrieval_metrics(q, g, junk="none")
    found = score_text(model, dict(a=fine), "val")["a"]
    assert {k: found[k] for k in ("R1", "mAP", "mSD")} == {k: want[k] for k in ("R1", "mAP", "mSD")}


SMALL = dict(dim=32, vision=dict(width=64, layers=1, head_width=32, patch_size=16),
             text=dict(width=32, layers=1, heads=2))


@pytest.mark.parametrize("model", ["cfam_b16", "irra_b16", "clip_b16"])
def test_clips_own_tokenizer_trains_and_is_loaded(model, fine, tmp_path):
    "Published sizes read CLIP's tokens, which have no list of pieces"
    own = dict(cfam_b16=dict(towers=SMALL, hidden=32, heads=2), irra_b16=dict(towers=SMALL), clip_b16=SMALL)
    kw = dict(size=(64, 32), **own[model])
    done = train_text(fine, "smoke", folder=tmp_path, quiet=True, model=model, model_kw=tuple(kw.items()), steps=2)
    again, q = load_text(tmp_path), fine.text_queries("test").head(4)
    assert torch.equal(embed_texts(done.model, q).emb, embed_texts(again.model, q).emb)
    assert again.model.tokenizer.context_length == (168 if model == "cfam_b16" else 77)
    s = text_settings("smoke", model=model, model_kw=tuple(kw.items()))
    one, two = (text_key(fine, s, 0, ClipBPE(n))["tokens"] for n in (77, 168))
    assert one != two


def test_given_batches_go_before_the_epochs_of_a_preset():
    assert (text_settings("paper").steps, text_settings("paper").epochs) == (200, 60)
    for s in (text_settings("paper", steps=600), method_settings(dict(name="cfam", steps=600), "paper")):
        assert (s.steps, s.epochs) == (600, 0)
    assert text_settings("paper", steps=7, epochs=3).epochs == 3        # both are said: the caller's choice
    assert not text_settings("paper", steps=0).epochs


def test_a_training_that_was_stopped_ends_with_the_same_bits(fine, tmp_path):
    "Masks, augmentation, schedule and optimiser go on where the last state was written"
    how = dict(quiet=True, steps=60, batch_size=8, seed=2, model_kw=(("losses", "gs+ls+m+cid+irr"), ("size", (64, 32))))
    whole = train_text(fine, "smoke", **how)

    class Stop(Callback):
        def after_step(self, learn):
            if learn.step == 57: raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): train_text(fine, "smoke", folder=tmp_path, callbacks=[Stop()], **how)
    again = train_text(fine, "smoke", folder=tmp_path, callbacks=[Callback()], **how)
    assert again.steps == 60 and again.images == whole.images
    assert all(torch.equal(v, again.model.state_dict()[k]) for k, v in whole.model.state_dict().items())


def test_methods_see_the_same_batches(fine, monkeypatch):
    "Paired by seed: images, captions, masks and the initial towers are those of every other method"
    from reid_lab.recipes import text as module
    seen = {}
    class Kept(Exception): pass
    def fit(model, loader, *a, **kw):
        seen[name] = ([loader.batch(0, i) for i in (0, 2)], {k: v for k, v in model.state_dict().items()
                                                             if not k.startswith(tuple(model.new_parts))})
        raise Kept
    monkeypatch.setattr(module, "fit", fit)
    for name in METHODS:
        if not METHODS[name].steps: continue
        with pytest.raises(Kept): train_text(fine, method_settings(dict(name=name), "smoke"), 3, quiet=True)
    (first, towers), *rest = seen.values()
    assert len(rest) > 5
    for batches, weights in rest:
        for a, b in zip(first, batches):
            assert all(torch.equal(a[k], b[k]) for k in ("img", "tokens", "tokens_mlm", "label"))
            assert a["caption"] == b["caption"]
        assert weights.keys() == towers.keys() and all(torch.equal(weights[k], towers[k]) for k in towers)


def test_no_caption_or_person_of_a_test_is_trained_on():
    "In no pair of settings of the transfer matrix, whatever style, granularity and domain"
    names = dict(STUDIES["settings"].run)["tests"]
    tables = {n: load_setting(n, "smoke") for n in names}
    for a in names:
        train = tables[a].where(split="train")
        for b in names:
            test = tables[b].where(split="test")
            assert not {*train["pid"]} & {*test["pid"]} and not {*train["path"]} & {*test["path"]}, (a, b)
    tok = text_tokenizer(tables["fine"], text_settings("smoke"))
    only = tables["fine"].where(split="train")
    assert tok.vocab == text_tokenizer(only, text_settings("smoke")).vocab      # learned from the training captions


# --- CFAM's studies ---------------------------------------------------------------------------------------------------

def test_every_method_logs_its_losses(fine):
    for name, m in METHODS.items():
        if not m.steps: continue
        s = method_settings(dict(name=name, steps=2), "smoke")
        terms = {k for k in train_text(fine, s, quiet=True).log[-1] if k.endswith("_loss")}
        if m.losses: assert terms == {f"{k}_loss" for k in m.losses.split("+")}, name
        else: assert len(terms) >= 3, name


def test_gradients_of_losses_are_those_of_backward_at_the_towers(fine):
    "Each loss alone through `backward`; weights scale norms and leave directions; the new parts are left out"
    s = method_settings(dict(name="cfam"), "smoke")
    torch.manual_seed(0)
    model = new_text_model(fine, s)
    batch = text_batches(fine, s, model).batch(0, 0)
    found = loss_gradients(model, batch)
    assert list(found.index) == ["gs", "ls", "m", "cid"] and found.share.max() == 1
    for k in found.index:
        model.zero_grad()
        (one := model.train()(batch)[f"{k}_loss"]).backward()
        norm = sum(p.grad.square().sum() for n, p in model.named_parameters()
                   if p.grad is not None and not n.startswith(model.new_parts)).sqrt().item()
        assert found.value[k] == pytest.approx(one.item(), rel=1e-5) and found.norm[k] == pytest.approx(norm, rel=1e-3)
    model.zero_grad()
    model.loss_weights = dict(m=10., cid=10.)
    heavy = loss_gradients(model, batch)
    assert np.allclose(heavy.norm/found.norm, [1, 1, 10, 10], rtol=1e-3)
    assert np.allclose(heavy.cosine, found.cosine, atol=1e-3)
    with pytest.raises(ValueError, match="trains nothing"): loss_gradients(NoLoss(), batch)


class NoLoss(torch.nn.Module):
    def forward(self, batch): return {}


def test_the_weight_of_the_pair_losses_reaches_the_model(fine):
    s = method_settings(dict(name="cfam", pair_weight=100.), "smoke")
    model = new_text_model(fine, s)
    assert model.loss_weights == dict(m=100., cid=100.)
    assert not new_text_model(fine, method_settings(dict(name="cfam"), "smoke")).loss_weights
    with pytest.raises(ValueError, match="pair_weight"): method_settings(dict(name="irra", pair_weight=2.), "smoke")
    with pytest.raises(ValueError, match="pair_weight=2.0.*none"):
        method_settings(dict(name="gs", pair_weight=2.), "smoke")


def test_equal_pairs_and_the_rows_of_table_8():
    pairs = {n: (s := method_settings(dict(name=n))).steps*s.batch_size for n, m in METHODS.items() if m.steps}
    assert len(set(pairs.values())) == 1
    losses = [METHODS[n].losses for n in TABLE_8]
    assert losses[0] == "itc" and all(b.startswith(a) for a, b in zip(losses[1:], losses[2:]))
    assert all(method_settings(dict(name=n), "paper").lr == 1e-5 for n in METHODS)
    assert method_settings(dict(name="irra"), "paper").model == "irra_b16"
    assert set(TEXT_PRESETS) == {"smoke", "quick", "full", "paper"}


def test_a_model_is_never_trained_under_the_name_of_another():
    "`model=` chooses the size; the family is that of the method"
    assert method_settings(dict(name="irra"), model="cfam_b16").model == "irra_b16"
    assert method_settings(dict(name="cfam"), model="irra_tiny", lr=1e-3).model == "cfam_tiny"
    assert method_settings(dict(name="cfam"), model="cfam_l14").model == "cfam_l14"
    with pytest.raises(ValueError, match="model='cfam_l14'.*irra"): method_settings(dict(name="irra"), model="cfam_l14")
    for model in ("clip_tiny", "camel_tiny"):
        with pytest.raises(ValueError, match=f"model='{model}'.*train_text"):
            method_settings(dict(name="itc"), model=model)
    for name, m in METHODS.items():
        s = method_settings(dict(name=name), "paper", model="cfam_b16")
        assert (s.model.split("_")[0], dict(s.model_kw).get("losses", "")) == (m.family, m.losses)


def test_studies_name_what_there_is():
    printed = [p for s in STUDIES.values() for p in s.printed]
    assert len(printed) == len(set(printed)) and {"Table 2", "Table 8", "Table 9", "Table 10"} <= set(printed)
    for study in STUDIES.values():
        names = [label(s, TITLES) for s in study.settings]
        assert len(set(names)) == len(names) and len({setting_folder(s, 0) for s in study.settings}) == len(names)
        for t in dict(study.run)["tests"]: text_setting(t)
        for s in study.settings:
            if s.get("train"): text_setting(s["train"])


def test_a_run_goes_on_and_keeps_what_the_figures_read(tmp_path):
    setting = dict(name="gs", train="coarse", steps=3)
    a, b = (run_method(setting, "smoke", tests=("coarse", "fine/generated"), keep=tmp_path) for _ in range(2))
    assert [r["mAP"] for r in a] == [r["mAP"] for r in b] and [r["test"] for r in a] == ["coarse", "fine/generated"]
    kept = {p.name for p in (tmp_path / setting_folder(setting, 0)).iterdir()}
    assert kept >= {f"{t}-{x}" for t in ("coarse", "fine_generated") for x in ("queries", "gallery")}
    with pytest.raises(ValueError, match="other scores"): run_method(setting, "smoke", tests=("fine",), keep=tmp_path)
    start = run_method(dict(name="start"), "smoke", tests=("fine",))
    assert start[0]["images_seen"] == 0


def test_a_row_stands_beside_tables_of_its_training_and_test_set_only():
    "Trained on ICFG-PEDES and searched with CUHK-PEDES: a row of Table 3b, not of Tables 5 and 8; World rows: none"
    import pandas as pd

    from reid_lab.recipes.text_report import beside_paper
    whole = dict(ids=1000, images=3074, captions=6156, cams=0)
    row = dict(variant="CFAM", model="cfam_b16", split="test", test_set=dict(query=whole, gallery=whole), R1=1., R5=2.,
               R10=3., mAP=1., mINP=1., mSD=1.)
    at = lambda a, b: pd.DataFrame([dict(row, train=a, test=b)])
    tables = ("2", "3a", "3b", "4", "5", "8")
    ours = lambda found: {t: (f.origin == "ours").sum() for t, f in found.items()}
    assert ours(beside_paper(at("icfg-pedes", "cuhk-pedes"), tables)) == {"3b": 1}
    assert ours(beside_paper(at("ufine6926", "cuhk-pedes"), tables)) == {"3a": 1, "3b": 1}
    assert ours(beside_paper(at("cuhk-pedes", "cuhk-pedes"), tables)) == {"5": 1, "8": 1}
    assert beside_paper(at("fine", "fine"), tables) == {}


@pytest.mark.parametrize("on, to, tables", [
    ("icfg-pedes", "icfg-pedes", {"6"}), ("rstpreid", "rstpreid", {"7"}), ("ufine6926", "ufine6926", {"4"}),
    ("cuhk-pedes", "ufine3c", {"2"}), ("ufine6926", "ufine3c", {"2", "4"}), ("ufine6926", "icfg-pedes", {"3a", "3b"}),
    ("rstpreid", "ufine6926", {"3a"}), ("ufine3c", "ufine3c", set())])
def test_every_dataset_stands_beside_its_own_rows(on, to, tables):
    "Whole test sets of each folder; a part of one is left out of the rows and named in the footnote"
    import pandas as pd

    from reid_lab.datasets.registry import DATASETS
    from reid_lab.recipes.text_report import beside_paper
    ids, images, captions = DATASETS[to].counts["test"]
    whole = dict(ids=ids, images=images, captions=captions, cams=0)
    row = dict(variant="CFAM", model="cfam_b16", split="test", train=on, test=to, R1=1., R5=2., R10=3., mAP=1., mINP=1.,
               mSD=1., test_set=dict(query=whole, gallery=whole))
    every = ("2", "3a", "3b", "4", "5", "6", "7", "8", "9")
    found = beside_paper(pd.DataFrame([row]), every)
    assert set(found) == tables
    for f in found.values():
        assert set(f.dataset) == {DATASETS[to].title} and f.origin.tolist()[-1] == "ours" and f.R1.iat[-1] == 1.
        assert (f.origin == "published").sum() == len(f) - 1 > 0
    part = dict(row, test_set=dict(query=whole, gallery=whole | dict(images=images - 1)))
    for f in beside_paper(pd.DataFrame([part]), every).values():
        assert set(f.origin) == {"published"} and f"published: {images:,}" in f.attrs["footnote"]


# --- preset paper reads captions as the released loaders leave them ---------------------------------------------------

WRITTEN = [c for c in AWKWARD if c.strip()]
FILES = {  # annotation, key of the path, place of images, first id
    "cuhk-pedes": ("reid_raw.json", "file_path", "imgs", 1),
    "icfg-pedes": ("ICFG-PEDES.json", "file_path", "imgs", 0),
    "rstpreid": ("data_captions.json", "img_path", "imgs", 0),
    "ufine6926": ("UFine6926.json", "file_path", ".", 1)}


def write_pixels(folder, path):
    file = folder/path
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 32), "gray").save(file)


def write_awkward(folder, name):
    "A dataset in the files of its authors whose captions are `WRITTEN`, in training and in the test"
    if name == "aeri-pedes":
        train = [dict(pid=1, split="train", aerial_img="AERI-PEDES/a.jpg", ground_img="AERI-PEDES/g.jpg", caption=c)
                 for c in WRITTEN]
        test = [dict(pid=9, split="test", captions=WRITTEN, file_paths=["t.jpg"], ground_file_paths=[])]
        for file, records in dict(train_caption=train, test_caption=test).items():
            (folder/f"{file}.json").write_text(json.dumps(records))
        for path in ("a.jpg", "g.jpg", "t.jpg"): write_pixels(folder, path)
        return
    file, key, images, first = FILES[name]
    records = [{"split": split, "captions": WRITTEN, key: f"images/{split}.jpg", "id": first + i,
                "processed_tokens": []} for i, split in enumerate(("train", "test"))]
    if name == "ufine6926": records = [{k: v for k, v in r.items() if k != "processed_tokens"} for r in records]
    (folder/file).write_text(json.dumps(records))
    for split in ("train", "test"): write_pixels(folder, f"{images}/images/{split}.jpg")


def paper_settings(model):
    "Preset `paper` of a model of IRRA's line with small towers"
    small = dict(size=(64, 32), towers=SMALL, **(dict(hidden=32, heads=2) if model == "cfam_b16" else {}))
    how = dict(weights="none", model_kw=tuple(small.items()), batch_size=4, device="cpu", augment="plain")
    if model == "cfan_b16": return cfan.method_settings(dict(name="cfan"), "paper", **how, keep_last=True)
    return method_settings(dict(name=model.removesuffix("_b16")), "paper", **how, keep_last=True)


@pytest.mark.parametrize("model, length, dataset", [
    *[("irra_b16", 77, name) for name in ("cuhk-pedes", "icfg-pedes", "rstpreid")],
    ("cfam_b16", 168, "ufine6926"), ("cfam_b16", 168, "cuhk-pedes"), ("cfan_b16", 77, "aeri-pedes")])
def test_captions_are_read_as_by_the_released_loaders(model, length, dataset, tmp_path, monkeypatch):
    "Token by token, and in training as in the test: the files' captions reach CLIP's tokenizer unchanged"
    write_awkward(tmp_path, dataset)
    table, s = load_dataset(dataset, tmp_path), paper_settings(model)
    assert s.model == model and s.mask == .15 and s.mask_each
    net = new_text_model(table, s).eval()
    want = {c: released_ids(c, length) for c in WRITTEN}
    with pytest.warns(UserWarning, match="cut off"):
        batches = text_batches(table, s, net)
    trained, masked = {}, {c: set() for c in WRITTEN}
    for epoch, i in ((e, i) for e in range(4) for i in range(len(batches))):
        batch = batches.batch(epoch, i)
        for caption, row, hidden in zip(batch["caption"], batch["tokens"], batch["labels_mlm"]):
            trained[caption] = row.tolist() + [0]*(length - len(row))
            masked[caption].add(int((hidden != -100).sum()))
    assert trained == want
    assert all(min(numbers) > 0 for numbers in masked.values())
    assert len(masked[max(WRITTEN, key=len)]) > 1                     # of each token by itself, not a fixed share

    searched = []
    def embed(tokens):
        searched.extend(tokens.tolist())
        return torch.ones(len(tokens), net.dim)
    monkeypatch.setattr(net, "encode_text", embed)
    with pytest.warns(UserWarning): score_text(net, {dataset: table})
    assert searched == [want[c] for c in table.text_queries("test").caption]
