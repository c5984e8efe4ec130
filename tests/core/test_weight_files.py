"Damaged copies of the weights that come with the package: they hold no checksum, and every door refuses them"
import numpy as np
import pytest
from PIL import Image

import reid_lab.core.weight_files as weight_files
from reid_lab.cli.commands import main
from reid_lab.core.weight_files import DamagedFile, read_tensors
from reid_lab.models.weights.shipped import FOLDER, card_for, shipped_tokenizer
from reid_lab.models.zoo import MODELS, create_model
from reid_lab.retrieval.embeddings import Embeddings

FILES = sorted(FOLDER.glob("*.safetensors"))
EACH = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    "Two images"
    folder = tmp_path_factory.mktemp("crops")
    for i in range(2): Image.fromarray(np.full((64, 32, 3), 90*i, np.uint8)).save(folder/f"{i}.png")
    return folder


@pytest.fixture
def doors(crops, tmp_path, monkeypatch):
    "Name -> call that reads the weights of a model from a file; a command gives its exit status"
    monkeypatch.chdir(tmp_path)
    def embed(model, file):
        tokenizer = []
        if MODELS[model].reads == "captions":
            shipped_tokenizer(card_for(model)).save("words")
            tokenizer = ["--tokenizer", "words"]
        return main(["embed", str(crops), "--model", model, "--weights", str(file), *tokenizer, "--out", "f"])
    return dict(embed=embed, doctor=lambda model, file: main(["doctor", str(crops), "--weights", str(file)]),
                inspect=lambda model, file: main(["weights", "inspect", str(file)]))


def copied(file, folder, change=None):
    "A copy of a file of the package under another name, with one flipped bit `change` bytes before its end"
    data = bytearray(file.read_bytes())
    if change: data[-change] ^= 1
    copy = folder/f"copy of {file.name}"
    copy.write_bytes(data)
    return copy


def built(model, file):
    "The model with what its constructor needs beside the weights"
    given = dict(n_ids=1) if "n_ids" in MODELS[model].needs else {}
    if MODELS[model].reads == "captions": given["tokenizer"] = shipped_tokenizer(card_for(model))
    return create_model(model, weights=file, **given)


@EACH
def test_a_damaged_copy_is_refused_at_every_door(file, doors, tmp_path, capsys):
    damaged = copied(file, tmp_path, change=1 + file.stat().st_size//3)
    refusal = f"is a damaged copy of the weights of '{file.stem}'"
    for name, door in doors.items():
        assert door(file.stem, damaged) == 2, name
        message = capsys.readouterr().err
        assert refusal in message and damaged.name in message and "copy it again" in message, name
        assert str(FOLDER) in message and "'world' stands for" in message and "Traceback" not in message, name
    with pytest.raises(ValueError, match=refusal): built(file.stem, damaged)


@EACH
def test_a_whole_copy_is_taken_at_every_door(file, doors, tmp_path, capsys):
    copy = copied(file, tmp_path)
    for name, door in doors.items(): assert door(file.stem, copy) == 0, (name, capsys.readouterr().err)
    assert built(file.stem, copy).loaded.matched


def test_a_damaged_card_is_refused_too(tmp_path):
    "The tensors are whole, but what the card says of the Worlds that they have seen is not"
    file = FILES[0]
    change = file.stat().st_size - file.read_bytes().index(b"worlds")
    with pytest.raises(DamagedFile, match="its header is not"): read_tensors(copied(file, tmp_path, change))


def test_what_needs_no_sum_is_not_summed(tmp_path, monkeypatch):
    "Files of other programs, which hold no checksum, are not summed"
    from safetensors.torch import save_file
    file = FILES[0]
    state, meta = read_tensors(copied(file, tmp_path))
    own = tmp_path/"own.safetensors"
    save_file(state, own, metadata=dict(format="pt"))
    def never(state): raise AssertionError("summed")
    monkeypatch.setattr(weight_files, "checksum", never)
    assert read_tensors(own)[1] == dict(format="pt")


def test_the_remedy_is_taken(crops, tmp_path, monkeypatch, capsys):
    "`--weights world` is what leaving `--weights` out is, and refused where nothing comes with the package"
    monkeypatch.chdir(tmp_path)
    for out, given in dict(named=["--weights", "world"], left_out=[]).items():
        assert main(["embed", str(crops), "--model", "bot_tiny", *given, "--out", out]) == 0
    named, left_out = (Embeddings.load(tmp_path/out) for out in ("named", "left_out"))
    assert (named.emb == left_out.emb).all() and named.meta == left_out.meta
    assert main(["doctor", str(crops), "--weights", "world"]) == 0
    assert main(["embed", str(crops), "--model", "cfam_b16", "--weights", "world", "--out", "f"]) == 2
    assert "no weights of --model cfam_b16 come with the package" in capsys.readouterr().err
