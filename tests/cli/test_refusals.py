"Refusals that a newcomer meets: each is one line that names what was given and what to do"
import contextlib

import pytest
from helpers.small_place import write_small_place

from reid_lab.cli.commands import main
from reid_lab.recipes.crops import check_model_name
from reid_lab.recipes.finetune import Gain, verdict


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    "A folder with crops, features, weights of another model, and damaged files"
    folder = tmp_path_factory.mktemp("place")
    write_small_place(folder).save(folder/"one.safetensors")
    (folder/"cut.json").write_text('{"rate')
    (folder/"cut.onnx").write_bytes(b"junk")
    return folder


EMBED, OUT = ["embed", "crops", "--model"], ["--out", "new"]
REFUSED = {
    "weights as features": (["metrics", "osnet.pth", "osnet.pth"],
                            ["these are weights of a network", "weights inspect osnet.pth", "more"]),
    "weights of another model": ([*EMBED, "bot_tiny", "--weights", "osnet.pth", *OUT],
                                 ["this file opens with --model frozen:osnet_x0_25"]),
    "no such folder": (["doctor", "nothere"], ["'nothere'", "No such folder and no such manifest"]),
    "a cut threshold": (["match", "features", "features", "--threshold", "cut.json"],
                        ["cut.json is no saved Threshold", "no valid JSON from line 1 on", "calibrate one"]),
    "a cut ONNX file": ([*EMBED, "onnx:cut.onnx", *OUT], ["damaged, cut short or of another kind", "copy it again"]),
    "a folder of features as crops": (["embed", "features", "--model", "bot_tiny", *OUT],
                                      ["'features': these are features already"]),
    "a file of features as crops": (["embed", "one.safetensors", "--model", "bot_tiny", *OUT],
                                    ["'one.safetensors': these are features already", "--weights one.safetensors"]),
    "tracklets of crops": ([*EMBED, "no-model", "--tracklets", "mean", *OUT],
                           ["crops is a folder, whose crops have no tracklets", "--boxes FILE"]),
    "an export that does not fit": (["weights", "export", "bot_tiny", "--format", "timm", *OUT],
                                    ["--format timm does not take this model", "no other format"])}
RAW = "Traceback", "INVALID_PROTOBUF", "char ", "ending="


@pytest.mark.parametrize("given, said", REFUSED.values(), ids=REFUSED)
def test_the_refusal_says_what_to_do(given, said, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    with contextlib.suppress(SystemExit): assert main(given) == 2
    message = capsys.readouterr().err.replace("[0:10] embed\n", "")
    assert all(text in message for text in said), message
    assert len(message) < 900 and not any(text in message for text in RAW), message
    assert not (place/"new").exists()


def test_a_model_of_images_is_known_and_reads_no_captions():
    with pytest.raises(ValueError, match="model='bot_tiny' reads no captions; choose one of .*'clip_tiny'"):
        check_model_name("bot_tiny", "captions")
    with pytest.raises(ValueError, match="is not known"): check_model_name("bot_tini", "captions")


def test_a_run_of_plumbing_resolves_nothing():
    gain = Gain(4., 1., 7., 12, 3)
    assert "12 held-out people: +4.0 [+1.0, +7.0] points of mAP, higher at 95 %" in verdict(gain)
    assert "higher" not in verdict(gain, plumbing=True) and "resolves nothing" in verdict(gain, plumbing=True)
