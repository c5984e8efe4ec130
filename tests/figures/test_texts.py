"Texts of figures: none leaves its canvas, none lies over another"
import ast
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.figures import Watched, text_faults, unit_faults, wording_faults
from PIL import Image

from reid_lab import figures
from reid_lab.analysis.text_stats import text_histograms
from reid_lab.datasets.registry import dataset_title
from reid_lab.figures import (
    agreement,
    cameras,
    captioning,
    captions,
    charts,
    comparisons,
    explain,
    ranked_lists,
    style,
    views,
)
from reid_lab.recipes.camel_settings import TITLES as CAMEL
from reid_lab.recipes.dmg import TITLES as DMG

WORLD = dataset_title("world-smoke-skew")
LONG = "A tall woman in a dark red raincoat with a hood, wide grey trousers and white shoes, carrying a small bag. "*3
SETTINGS = list(CAMEL.values())[:7]
METHODS = ["No adaptation", "DART3-LITE, paper rate", "Standardised without cameras", "TENT with BN statistics"]


def images(n):
    return np.random.default_rng(0).integers(0, 255, (n, 32, 16, 3)).astype(np.uint8)


def rows():
    "Runs of seven settings over four seeds"
    rng = np.random.default_rng(0)
    return pd.DataFrame([dict(variant=v, method=v, seed=s, n_masked=n, dataset=d, R1=40 + i - 2*n + rng.normal())
                         for i, v in enumerate(SETTINGS) for s in range(4) for n in (0, 1, 2, 3)
                         for d in (WORLD, dataset_title("market1501->msmt17"))])


def one_dataset():
    frame = rows()
    return frame[(frame.n_masked == 0) & (frame.dataset == WORLD)]


def ranked(names, captions=False, n=3):
    order = np.tile(np.arange(12), (n, 1))
    queries = [LONG]*n if captions else list(images(n))
    return queries, dict.fromkeys(names, order), images(12), np.arange(n), np.arange(12) % 5


def per_camera(n_cameras):
    cams = np.arange(1, n_cameras + 1)
    return pd.DataFrame(dict(cam=cams, n_query=100*cams, mAP=60. - cams))


def uncertainty():
    kinds = ["euclidean", "cosine", "entropy"]
    return pd.DataFrame([dict(kind=k, low=b, high=b + 1, centre=b + .5, n=10 + b, error=60. + b)
                         for k in kinds for b in range(8)])


def points():
    rng = np.random.default_rng(0)
    return pd.DataFrame(dict(x=rng.normal(size=60), y=rng.normal(size=60), cam=np.arange(60) % 9, pid=np.arange(60)//3,
                             role=["query", "gallery"]*30))


def compared():
    models = ["osnet_x1_0 (MSMT17)", "BoT, ResNet-50", "TransReID, ViT-B/16, stride 12"]
    scores = pd.DataFrame([dict(model=m, dataset=WORLD, mAP=60. + i, low=58., high=64., ms=2. + i)
                           for i, m in enumerate(models)])
    differences = pd.DataFrame([dict(model=m, dataset=WORLD, metric=k, diff=-.04, low=-1.2, high=1.1)
                                for m in models for k in ("R1", "mAP", "mINP")])
    return scores, differences


def long_names(n):
    "Files and folders that a user gave as models"
    return [f"runs/run_camel-2026-11-28-{i}/models/camel-0-weights=world, finetuned on CUHK-PEDES" for i in range(n)]


def words():
    return [dict(text=w, value=.1*i - .2, gone=i == 2) for i, w in enumerate(LONG.split()[:18])]


def effects():
    kinds = ["colour of a garment", "garment", "bag", "hair", "place", "function words", "sleeves and length"]
    return pd.DataFrame([dict(kind=k, effect=.1*i, low=.1*i - .05, high=.1*i + .1) for i, k in enumerate(kinds)])


def trust():
    methods = ["gradcam", "attention rollout", "occlusion", "integrated gradients"]
    pointing = dict(point_person=.2, point_person_low=.1, point_person_high=.3, points=True)
    return pd.DataFrame([dict(pointing, model=m, method=k, deletion_beats=.8, deletes=True, believed=k == "gradcam")
                         for m in ("camel_tiny", "clip_tiny") for k in methods])


def list_results(n):
    return [dict(image=im, name="0001_c1s1_000151_01.jpg", right=bool(i % 2), rank=f"#{i + 1}", score=.5,
                 note=f"id {i} · cam {i} · {i*100} s later") for i, im in enumerate(images(n))]


def failures():
    side = dict(image=images(1)[0], name="x.jpg")
    reasons = [("seen from another side (40 | 10)", True)]*6
    one = dict(head="query 12, rank 31", said="best wrong: id 17", reasons=reasons, mark="tick",
               query=dict(side, text=LONG), wrong=side, right=side)
    return [one]*3


def pairs_of(n_cameras, **kw):
    "As many cameras of queries as of the gallery, each asked for alike"
    names = range(1, n_cameras + 1)
    shares = np.full((n_cameras, n_cameras), 1/n_cameras)
    return cameras.pair_matrix(cameras.PairShares(shares, n_cameras*shares, names, names), **kw)


def camera_card():
    frame = per_camera(6)
    nmi = dict(camera=.42, chance=.05, identity=.8)
    after = frame.assign(mAP=frame.mAP + 5)
    return cameras.camera_card(cameras.BeforeAfter(frame, after, dict(before=nmi, after=nmi)), chosen=[2], title=WORLD)


def caption_lists():
    from reid_lab.retrieval.embeddings import Embeddings
    rng = np.random.default_rng(0)
    g = Embeddings(rng.normal(size=(12, 4)), np.arange(12) % 4)
    q = Embeddings(rng.normal(size=(4, 4)), np.arange(4), caption=[LONG]*4)
    return captions.caption_lists(dict.fromkeys(SETTINGS[:3], (q, g)), images(12))


def differences():
    "Printed differences of five papers and those on a World, one far out"
    rng = np.random.default_rng(0)
    printed = rng.normal(0, 2, 40)
    here = printed + rng.normal(0, 2, 40)
    printed[0], here[0] = 25., -30.
    return pd.DataFrame(dict(paper=np.repeat(["DART3", "CAMeL", "DMG-Net", "CFAM", "CFAN"], 8), printed=printed,
                             spread=.5, here=here, low=here - 1, high=here + 1))


FIGURES = {
    "ranked_lists": lambda: ranked_lists.ranked_lists(*ranked(list(DMG.values())[:6])),
    "ranked_lists, captions": lambda: ranked_lists.ranked_lists(*ranked(SETTINGS[:3], captions=True)),
    "ranked_lists, as in run_dmg": lambda: ranked_lists.ranked_lists(
        *ranked([DMG[key] for key in ("start", "bot_double", "md", "dmg")]), width=4.6),
    "ranked_lists, one column": lambda: ranked_lists.ranked_lists(*ranked(METHODS, n=2), column="cvpr", k=5),
    "curves": lambda: charts.curves(rows(), "n_masked", "R1", by="method", panel="dataset", column="cvpr-full",
                                    ylabel=f"{WORLD}, R@1 (%)"),
    "masking_curves": lambda: charts.masking_curves(rows()),
    "learning_curves": lambda: charts.learning_curves(
        {name: [dict(step=s, itc_loss=1/(s + 1), mlm_loss=2.) for s in range(20)] for name in SETTINGS},
        ["itc_loss", "mlm_loss"], ylabel=WORLD),
    "bars_paired": lambda: charts.bars_paired(one_dataset(), "R1", SETTINGS[0], label=f"{WORLD}, R@1 (%)",
                                              column_name="variant", controls=SETTINGS[-2:]),
    "heat_map": lambda: charts.heat_map(pd.DataFrame(np.linspace(-.01, 90, 16).reshape(4, 4),
                                                     [dataset_title(f"world-quick test-{c}") for c in "abcd"],
                                                     ["Market-1501", "MSMT17", "CUHK-SYSU", WORLD])),
    "score_against_time": lambda: comparisons.score_against_time(compared()[0]),
    "score_against_time, long names": lambda: comparisons.score_against_time(
        compared()[0].assign(model=long_names(3), ms=[1., 9., np.nan])),
    "paired_differences": lambda: comparisons.paired_differences(compared()[1], "BoT"),
    "agreement_chart": lambda: agreement.agreement_chart(differences()),
    "agreement_chart, narrow": lambda: agreement.agreement_chart(differences(), width=2.2),
    "calibration_curves": lambda: comparisons.calibration_curves(
        {name: (np.linspace(0, 1, 5), np.linspace(0, 1, 5)**2) for name in SETTINGS[:4]}),
    "calibration_curves, long names": lambda: comparisons.calibration_curves(
        {name: (np.linspace(0, 1, 5), np.linspace(0, 1, 5)**2) for name in long_names(3)}),
    "camera_map": lambda: cameras.camera_map(dict.fromkeys(METHODS[:3], points()), column="cvpr-full"),
    "camera_bars": lambda: cameras.camera_bars(dict.fromkeys(METHODS, per_camera(15)), title=WORLD, column="cvpr-full"),
    "camera_bars, long label": lambda: cameras.camera_bars(per_camera(4), label=f"{WORLD}, mAP of queries (%)"),
    "error_curves": lambda: cameras.error_curves(uncertainty(), column="cvpr-full", title=WORLD),
    "error_curves, long label": lambda: cameras.error_curves(uncertainty(), column="cvpr-full",
                                                             label=f"{WORLD},\nerrors at rank 1 (%)"),
    "nmi_bars": lambda: cameras.nmi_bars(pd.DataFrame(dict(method=METHODS, camera=.3, identity=.8, chance=.05)),
                                         label=WORLD),
    "pair_matrix": lambda: pairs_of(9, title=f"{WORLD}: neighbours"),
    **{f"pair_matrix, {n} cameras": lambda n=n: pairs_of(n, title=f"{LONG[:60]}: No adaptation") for n in (1, 2, 3, 4)},
    "pair_matrix, one camera without a title": lambda: pairs_of(1),
    "camera_card": camera_card,
    "caption_board": lambda: captions.caption_board([(list(images(2)), [("coarse", LONG), ("fine", LONG*2)])]*2,
                                                    heads=["image one", "image two"]),
    "people_sheet": lambda: captions.people_sheet([list(images(6))]*2, [LONG]*6, ["from the ground", "from above"]),
    "image_rows": lambda: captions.image_rows({name: list(images(8)) for name in METHODS},
                                              {name: "12 images of 3 people" for name in METHODS}),
    "score_strips": lambda: captions.score_strips({"first": ([.9, .8, .7], [1, 0, 1]), "second": ([.9, .2], [1, 0])}),
    "score_histograms": lambda: captions.score_histograms(
        {name: pd.DataFrame(dict(AP=np.linspace(0, 1, 30), SD=np.linspace(0, 1, 30))) for name in SETTINGS[:5]},
        where=WORLD),
    "score_histograms, long names": lambda: captions.score_histograms(
        {name: pd.DataFrame(dict(AP=np.linspace(0, 1, 30), SD=np.linspace(0, 1, 30))) for name in long_names(3)},
        where=WORLD),
    "value_histograms, long names": lambda: captions.value_histograms(
        {name: np.linspace(0, 1, 30) for name in long_names(3)}),
    "value_histograms": lambda: captions.value_histograms({name: np.linspace(0, 1, 30) for name in SETTINGS[:4]}),
    "lists_beside": lambda: captions.lists_beside(*ranked(SETTINGS[:5], captions=True, n=2),
                                                  {name: ["SD 0.12"]*2 for name in SETTINGS[:5]}),
    "caption_lists": caption_lists,
    "word_card": lambda: explain.word_card(words(), title="Which words matter, by camel_tiny", note=LONG),
    "map_card": lambda: explain.map_card(
        [dict(image=images(1)[0], over=images(1)[0], name="a.jpg", head="id 12 · cam 3 · rank 4", believed=b,
              verdict="Deletion beats 19 of 19 random maps; it points at the person.") for b in (True, False)],
        words(), title=LONG),
    "map_sheet": lambda: explain.map_sheet(
        [explain.MapGroup(LONG, ("raincoat", "trousers", "shoes"),
                          {name: [explain.MapPanel(images(1)[0], "19 of 19", i > 0) for i in range(3)]
                           for name in SETTINGS[:3]})]*2),
    "effect_dots": lambda: explain.effect_dots(dict.fromkeys(SETTINGS[:3], effects())),
    "effect_dots, long names": lambda: explain.effect_dots(dict.fromkeys(long_names(3), effects())),
    "map_dots": lambda: explain.map_dots(trust()),
    "message_card": lambda: views.message_card(LONG, title=f"{WORLD}: nothing to show"),
    "list_card": lambda: views.list_card(dict(text=LONG, note="caption 12", name=""), list_results(20),
                                         views.CardWords(WORLD, notes=["20 of 300 results"])),
    "list_card, image": lambda: views.list_card(dict(image=images(1)[0], note="id 3", name="q"), list_results(10)),
    "selection_map": lambda: views.selection_map(views.MapPoints(np.arange(9), np.arange(9) % 4, ["#0072b2"]*9,
                                                                 [True] + [False]*8),
                                                 {f"camera {i}": "#0072b2" for i in range(9)}, title=WORLD),
    "failure_card": lambda: views.failure_card(failures(), title=WORLD, message="3 of 12 failures"),
    "text_histograms": lambda: text_histograms({name: ["a man in red", LONG] for name in METHODS}),
    "text_histograms, long names": lambda: text_histograms({name: ["a man in red", LONG] for name in long_names(3)}),
    "curves, long names": lambda: charts.curves(
        pd.DataFrame([dict(step=s, mAP=40. + s, model=m) for s in range(4) for m in long_names(3)]), "step", "mAP",
        by="model"),
    "learning_curves, long names": lambda: charts.learning_curves(
        {name: [dict(step=s, itc_loss=1/(s + 1)) for s in range(20)] for name in long_names(3)}, ["itc_loss"]),
    "marked_examples": lambda: captioning.marked_examples(
        [[("keep", LONG), ("drop", " red"), ("add", " blue")]]*2, images(2), ["2 errors removed"]*2),
    "error_bars": lambda: captioning.error_bars(pd.DataFrame(
        [dict(seed=s, stage=stage, omission=20. + s, hallucination=9., wrong=4.) for s in range(4)
         for stage in ("perception", "draft", "audit")])),
}


def drawing_functions():
    "Names of functions that draw: those of figures, and any other that makes an empty figure"
    package = Path(inspect.getfile(figures)).parents[1]
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"): continue
            of_figures = path.parent.name == "figures" and node.returns and "PaperFigure" in ast.unparse(node.returns)
            calls = {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
            if of_figures or calls & {"paper_figure", "inch_canvas"}: yield node.name


def test_every_figure_is_here():
    "What the package draws has a line above"
    drawing, tested = set(drawing_functions()), {name.split(",")[0] for name in FIGURES}
    assert {"agreement_chart", "text_histograms"} <= drawing
    assert drawing - tested - {"paper_figure", "inch_canvas"} == set()


@pytest.mark.parametrize("name", FIGURES)
def test_texts_stay_on_the_canvas_and_apart(name):
    assert text_faults(FIGURES[name]()) == []


def planted(x, y, text, rotation=0):
    fig = style.paper_figure(2., 2.)
    ax = fig.add_axes((.3, .3, .6, .6))
    ax.set(xticks=[], yticks=[])
    ax.text(.5, .5, "a label", ha="center", va="center")
    ax.text(x, y, text, rotation=rotation, ha="center", va="center")
    return fig


@pytest.mark.parametrize("x, y, rotation, found", [
    (.5, .1, 0, []), (.5, .5, 0, ["'another' lies over 'a label'"]), (.5, .5, 90, ["'another' lies over 'a label'"]),
    (1.2, .1, 0, ["'another' leaves the canvas"]), (.5, -.6, 0, ["'another' leaves the canvas"])])
def test_a_planted_collision_is_found(x, y, rotation, found):
    assert text_faults(planted(x, y, "another", rotation)) == found


@pytest.mark.parametrize("text, fault", [
    ("world-smoke-skew, mAP (%)", "key of a data set"), ("cuhk-pedes", "key of a data set"),
    ("market1501 to MSMT17", "key of a data set"), ("-0.0", "zero with a sign"), ("\u22120", "zero with a sign"),
    ("World (smoke, skewed light)", ""), ("Market-1501 to MSMT17", ""), ("crops/market1501/0001.jpg", ""),
    ("-0.04", ""), ("0.0", ""), ("1-0", ""), ("a grid in the world", ""),
    ("CFAM, train=cuhk-pedes", "")])
def test_keys_of_data_sets_and_signed_zeros_are_found(text, fault):
    found = wording_faults([text])
    assert len(found) == bool(fault) and all(fault in one for one in found)


@pytest.mark.parametrize("label, lacking", [("paired difference to BoT", 1), ("difference to BoT (points, 95 %)", 0),
                                            ("gain over chance\n(points, mean)", 0), ("effect", 1), ("effective", 0)])
def test_a_difference_without_a_unit_is_found(label, lacking):
    assert len(unit_faults([label, "mAP (%)"])) == lacking
    assert unit_faults([label, "NMI"]) == []


def test_a_label_that_is_longer_than_its_axis_is_found():
    fig = style.paper_figure(3., 1.5, layout="constrained")
    fig.subplots().set_ylabel("a text of the y axis that is longer than the figure is high")
    assert len(text_faults(fig)) == 1


def test_a_program_that_is_watched_reports_each_figure_that_it_exports(tmp_path, monkeypatch):
    "What tests of whole experiments rest on: nothing in the program asks for it"
    watched = Watched(tmp_path, monkeypatch)
    program = """
from reid_lab.figures.style import export, paper_figure
for name, at, text in (("good", .5, "a label"), ("cut", 1., "a label"), ("key", .5, "cuhk-pedes"), ("grey", .5, "a")):
    fig = paper_figure(2., 1.)
    fig.text(at, .5, text, ha="center")
    if name == "grey": fig.set_facecolor("#fefefe")
    export(fig, name, "figures")
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    assert {path.stem for path in tmp_path.glob("figures/*.png")} == {"good", "cut", "key", "grey"}
    assert watched.figures() == dict(good=[], cut=["'a label' leaves the canvas"], grey=["is not on pure white"],
                                     key=["'cuhk-pedes' shows the key of a data set"])


def test_pictures_are_on_pure_white(tmp_path):
    "Also where 256 colours are chosen, half of them pale"
    pale = np.random.default_rng(0).integers(225, 255, (12, 32, 16, 3)).astype(np.uint8)
    order = np.tile(np.arange(12), (2, 1))
    fig = ranked_lists.ranked_lists(list(pale[:2]), dict(one=order), pale, [0, 1], np.arange(12) % 5)
    [path] = style.export(fig, "x", tmp_path, "png")
    assert Image.open(path).convert("RGB").getpixel((2, 2)) == (255, 255, 255)


def test_a_rounded_zero_has_no_sign():
    from reid_lab.results.tables import to_markdown
    fig = charts.heat_map(pd.DataFrame([[-.01, 3.]]))
    assert [t.get_text() for t in fig.axes[0].texts] == ["0.0", "3.0"]
    assert "-0.0" not in to_markdown(pd.DataFrame(dict(a=[-.001])))


def test_a_missing_image_is_placed_as_in_the_last_release():
    def placed(*place, **how):
        fig = views.message_card("none")
        views.image_or_name(fig.axes[0], None, "a.jpg", *place, **how)
        return fig.axes[0].patches[-1].get_bbox().bounds
    with pytest.warns(DeprecationWarning, match=r"place=ImagePlace\(x") as caught:
        old = placed(x=1.2, y=.3, w=.4, h=.8)
    assert caught[0].filename == __file__ and old == placed(views.ImagePlace(1.2, .3, .4, .8))
    with pytest.raises(TypeError, match="takes the record ImagePlace"): placed(1.2)
