"The results store under concurrency and damage, paired comparison against a reference, escaping"
import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from reid_lab.results import (RESULT_COLUMNS, append_result, load_results, paired, paired_table, pick, relative_to, summarise,
                              to_html, to_latex, to_markdown)


def rows(values, **more):
    "A frame: variant -> list of R1, one a seed"
    return pd.DataFrame([dict(variant=v, seed=s, R1=x, **more) for v, xs in values.items() for s, x in enumerate(xs)])


def test_processes_append_whole_rows(tmp_path):
    code = ("import sys; from reid_lab.results import append_result\n"
            "for i in range(30):\n"
            "    row = dict(dataset='world', variant=sys.argv[2]*200, seed=i, metrics=dict(R1=i))\n"
            "    append_result(row, sys.argv[1])")
    jobs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path/"runs.csv"), v]) for v in "ab"]
    assert [j.wait(60) for j in jobs] == [0, 0]
    frame = load_results(tmp_path/"runs.csv")
    assert len(frame) == 60 and sorted(frame[frame.variant == "a"*200].seed) == list(range(30))
    assert (tmp_path/"runs.csv").read_text().count("run,time") == 1


def test_values_survive_the_file(tmp_path):
    row = dict(dataset="world", variant='a,"b"\nc — ü', parameters=dict(lr=1e-4, order="fixed", k=None),
               metrics=dict(R1=np.float32(1.5), gap=math.nan))
    append_result(row, tmp_path/"r.csv")
    back = load_results(tmp_path/"r.csv").iloc[0]
    assert back.variant == row["variant"] and back.parameters == row["parameters"] and back.R1 == 1.5
    assert math.isnan(back.gap)
    assert list(RESULT_COLUMNS) == (tmp_path/"r.csv").read_text().splitlines()[0].split(",")


def test_damage_is_named_and_does_not_spread(tmp_path):
    path = tmp_path/"r.csv"
    append_result(dict(dataset="world", metrics=dict(R1=1.)), path)
    path.write_bytes(path.read_bytes() + b"torn,row")
    append_result(dict(dataset="world", metrics=dict(R1=2.)), path)
    with pytest.raises(ValueError, match="line 3: damaged"): load_results(path)
    path.write_text("\n".join(l for l in path.read_text().splitlines() if l != "torn,row") + "\n")
    assert load_results(path).R1.tolist() == [1, 2]


@pytest.mark.parametrize("row, message", [(dict(metrics=dict(R1=1.)), "needs 'dataset'"),
                                          (dict(dataset="world"), "needs 'metrics'"),
                                          (dict(dataset="world", metric=dict(R1=1.)), "Did you mean 'metrics'")])
def test_a_bad_row_is_refused_and_nothing_is_written(tmp_path, row, message):
    with pytest.raises(ValueError, match=message): append_result(row, tmp_path/"r.csv")
    assert not (tmp_path/"r.csv").exists()


def test_filters(tmp_path):
    for k in (3, 6):
        append_result(dict(dataset="world", seed=k, parameters=dict(k=k), metrics=dict(R1=k)), tmp_path/"r.csv")
    assert load_results(tmp_path/"r.csv", k=6).R1.tolist() == [6]
    assert load_results(tmp_path/"r.csv", seed=[3, 6]).R1.tolist() == [3, 6]
    with pytest.raises(ValueError, match="filter='kk'"): load_results(tmp_path/"r.csv", kk=6)


def test_paired_equals_scipy():
    from scipy import stats
    a, b = [40., 43., 38., 41., 44.], [42., 44.5, 40.5, 42., 47.]
    p = paired(rows(dict(a=a, b=b)), "R1", "a", "b")
    test = stats.ttest_rel(b, a).confidence_interval(.95)
    assert (p.t_low, p.t_high) == pytest.approx((test.low, test.high))
    assert p.diff == pytest.approx(2.) and p.n == 5 and p.verdict == "higher"
    assert paired(rows(dict(a=a, b=b)), "R1", "b", "a").verdict == "lower"
    assert p.t_low < p.boot_low < p.diff < p.boot_high < p.t_high


def test_relative_to_a_variant_of_the_same_seed():
    f = rows(dict(a=[1., 2.], b=[5., 7.])).sample(frac=1, random_state=0)
    f["over"] = relative_to(f, "R1", "a")
    assert f.set_index(["variant", "seed"]).over.to_dict() == {("a", 0): 0, ("a", 1): 0, ("b", 0): 4, ("b", 1): 5}
    alone = f[(f.variant == "b") | (f.seed == 0)]   # seed 1 has no row of `a`
    assert relative_to(alone, "R1", "a").isna().tolist() == (alone.seed == 1).tolist()
    with pytest.raises(ValueError, match="variant='c'"): relative_to(f, "R1", "c")
    with pytest.raises(ValueError, match="more than one row"): relative_to(pd.concat([f, f]), "R1", "a")


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [paired(rows(dict(a=rng.normal(40, 1, 5), b=rng.normal(40, 1, 5))), "R1", "a", "b") for _ in range(150)]
    wrong = sum(p.verdict != "not resolved" for p in found)
    assert 1 <= wrong <= 16  # 5 % nominal; this bound is over three standard deviations above


def test_pairs_are_matched_by_seed_not_by_order():
    frame = rows(dict(a=[10., 20., 30.], b=[11., 21., 31.])).sample(frac=1, random_state=1)
    p = paired(frame, "R1", "a", "b")
    assert p.values == (1., 1., 1.) and p.sd == 0
    lone = paired(frame[(frame.variant == "a") | (frame.seed < 2)], "R1", "a", "b")
    assert (lone.n, lone.unpaired) == (2, 1)


def test_unpaired_and_single():
    assert paired(rows(dict(a=[1.], b=[9.])), "R1", "a", "b").verdict == "not resolved"
    with pytest.raises(ValueError, match="more than one row"):
        paired(pd.concat([rows(dict(a=[1.], b=[2.]))]*2), "R1", "a", "b")
    apart = pd.concat([rows(dict(a=[1.])), rows(dict(b=[2.])).assign(seed=7)])
    with pytest.raises(ValueError, match="share no"): paired(apart, "R1", "a", "b")


def test_bonferroni_is_wider():
    frame = rows(dict(a=[40., 42., 39.], b=[41., 44., 41.], c=[43., 44., 42.]))
    plain, family = (paired_table(frame, "R1", "a", adjust=a) for a in ("none", "bonferroni"))
    assert plain.variant.tolist() == ["b", "c"] and ((family.high - family.low) > (plain.high - plain.low)).all()


def test_summary():
    frame = summarise(rows(dict(a=[1., 2., 3.], b=[5.]), dataset="world"), "R1")
    assert frame.R1.tolist() == ["2.00 ± 1.00", "5.00"] and frame.n.tolist() == [3, 1]


def test_every_renderer_escapes():
    frame = pd.DataFrame([dict(method="a_b & <script>|*x*", R1=50.)])
    assert r"a\_b \& \textless{}script\textgreater{}\textbar{}*x*" in to_latex(frame)
    assert "<script>" not in to_html(frame) and "&lt;script&gt;" in to_html(frame)
    line = to_markdown(frame).splitlines()[2]
    assert "<" not in line and r"\|" in line and line.replace(r"\|", "").count("|") == 3


def test_bold_takes_the_mean_not_the_text():
    frame = pd.DataFrame(dict(method=["a", "b", "c"], R1=["9.50 ± 0.1", "10.20 ± 3.0", ""]))
    assert r"\textbf{10.20 $\pm$ 3.0}" in to_latex(frame, bold=["R1"])
    assert to_latex(frame, bold=["R1"]).count("textbf") == 1


def test_pick_without_parameters_column():
    frame = rows(dict(a=[1.], b=[2.]))
    assert pick(frame, variant="b").R1.tolist() == [2.]
    assert json.dumps(frame.attrs) == "{}"
