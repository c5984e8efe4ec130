"Pairs are read by the type of the default; lists are the registries"
import pytest
from helpers.notebooks import notebook

from reid_lab.cli.commands import main
from reid_lab.cli.output import LISTS, LONGEST, as_options, message, pairs, typed


@pytest.mark.parametrize("items, message", [
    (["preset"], "'preset' is not name=value"), (["=x"], "'=x' is not name=value"), (["a b=1"], "'a b=1' is not name="),
    (["seed=1", "seed=2"], r"\['seed'\] given more than once")])
def test_pairs(items, message):
    assert pairs(["preset=smoke", "root=a=b", "x="]) == dict(preset="smoke", root="a=b", x="")
    with pytest.raises(ValueError, match=message): pairs(items)


def test_values_take_the_type_of_the_default(tmp_path):
    nb = notebook(tmp_path/"n.ipynb", parameters="name = ''\nseed = 0\nlr = 1.\non = True\nk = None")
    given = dict(name="007", seed="7", lr="1e-4", on="no", k="[1]")
    assert typed(given, nb) == dict(name="007", seed=7, lr=1e-4, on=False, k=[1])


def rules_of(name, capsys):
    "The names of a large family, which stands in the list as one line; else the name itself"
    if not name.endswith(".*"): return [name]
    assert main(["list", "protocols", name.removesuffix(".*")]) == 0
    return [line.split()[0] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("what", LISTS)
def test_lists_are_the_registries(what, capsys):
    assert main(["list", what]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    if what == "protocols": names = [own for name in names for own in rules_of(name, capsys)]
    assert names == list(LISTS[what]()) and names
    assert main(["list", what, names[0]]) == 0 and capsys.readouterr().out.startswith(f"{names[0]}: ")
    assert main(["list", what, names[0] + "x"]) == 2 and f"Did you mean '{names[0]}'" in capsys.readouterr().err


def test_an_unknown_name_is_answered_in_one_short_line(capsys):
    for what in ("protocols", "models", "datasets"):
        assert main(["list", what, "nonsense"]) == 2
        said = capsys.readouterr().err
        assert f"`reid_lab list {what}` shows all {len(LISTS[what]())}" in said and len(said) < 200


def test_lists_follow_the_registry(monkeypatch, capsys):
    from reid_lab.models.zoo import MODELS
    monkeypatch.setitem(MODELS, "zebra", MODELS["bot_tiny"])
    assert main(["list", "models"]) == 0 and "zebra" in capsys.readouterr().out


@pytest.mark.parametrize("text, known, want", [
    ("ks=(0,) must hold numbers of at least 1", {"ks"}, "--ks 0 must hold numbers of at least 1"),
    ("ks=[0, 5], or k=3", {"ks", "k"}, "--ks 0 5, or -k 3"),
    ("keys={'emb': 'features'} and keys=dict(emb='x', pid='y')", {"key"}, "--key emb=features and --key emb=x pid=y"),
    ("'emb=x' is not emb=y", {"emb"}, "'emb=x' is not --emb y"),
    ("/data/model=a/f.npz does not exist", {"model"}, "/data/model=a/f.npz does not exist"),
    ("the folder's k=0 is a file's", {"k"}, "the folder's -k 0 is a file's"),
    ("out='a b' exists", {"out"}, "--out 'a b' exists"), ("rate=1e-05", {"rate"}, "--rate 1e-05"),
    ("model=None, skip=False, fresh=True", {"model", "skip", "fresh"}, "no --model, skip=False, --fresh"),
    ("give BoxOptions(file=...) (--boxes FILE)", {"boxes"}, "give --boxes FILE"),
    ("out with skip_missing=True (--skip-bad)", {"skip_bad"}, "out with --skip-bad"),
    ("say with classes=[...] (--classes) which", {"classes"}, "say with --classes which"),
    ("is with first_frame=0 (--first-frame 0)", {"first_frame"}, "is with --first-frame 0"),
    ("is with first_frame=0 (--first-frame 0)", (), "is with first_frame=0 (--first-frame 0)"),
    ('a "root=x" in quotes, root="x"', {"root"}, 'a "root=x" in quotes, --root x')])
def test_options_replace_arguments_and_nothing_inside_a_value(text, known, want): assert as_options(text, known) == want


@pytest.mark.parametrize("error, want", [
    (FileNotFoundError(2, "No such file or directory", "a.npz"), "'a.npz': no such file or directory"),
    (KeyError("no ['emb']"), "no ['emb']"), (MemoryError("Unable to allocate 9 TiB"), "not enough memory. Unable to "
     "allocate 9 TiB"), (AssertionError(), "AssertionError"), (ValueError("x"*9999), "x"*(LONGEST//2) + " ... " +
     "x"*(LONGEST//2))])
def test_every_error_has_words(error, want): assert message(error) == want


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path/"q.npz").write_text("")
    with pytest.raises(FileExistsError) as e: (tmp_path/"q.npz").mkdir()
    assert message(e.value) == f"{str(tmp_path/'q.npz')!r} is a file; a folder is needed there"


def test_a_name_that_is_no_text():
    with pytest.raises(UnicodeEncodeError) as e: "caf\udce9.jpg".encode()
    want = "'caf\\udce9.jpg' holds bytes or halves of characters that are no text in utf-8; rename it"
    assert message(e.value) == want
