"Files of a hub: real processes against a server that speaks its protocol, and what is left in the cache after each."
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.hub import COMMIT, GATED, GONE, Hub, Repo, environment, in_cache

from reid_lab.models.weights.hub import HubName, Repository, RepositoryFile, chosen_file, hub_name, weights_in

SAFE, OTHER = b"weights"*700, b"changed"*700
CODE = """
import sys
from reid_lab.models.weights.hub import hub_file, hub_folder
configs = {"config.json": ["model.safetensors"]}
for name in sys.argv[1:]:
    try:
        place = hub_folder(name, ["model.safetensors"]) if name.startswith("hf-hub:") else hub_file(name, configs)
    except (OSError, ValueError) as e: print(type(e).__name__, e)
    else: print(place.name, place.path.is_dir() or place.path.read_bytes() == b"weights"*700, place.sha256[:8])
"""


def small(**more): return Repo({"model.safetensors": SAFE, "config.json": b"{}", "run.py": b"1/0"}, **more)


@pytest.fixture
def hub():
    with Hub(lab__tower=small(card=dict(license="mit")), lab__gated=small(refuses=GATED), lab__gone=small(refuses=GONE),
             lab__wrong=small(sent={"model.safetensors": OTHER}), lab__cut=small(stops_at=len(SAFE)//2),
             lab__two=Repo({"a.safetensors": SAFE, "b.safetensors": SAFE, "c.pth": SAFE}),
             lab__out=Repo({"../../../outside.safetensors": SAFE})) as server: yield server


def call(hub, cache, *names, **env):
    "Lines of standard output and standard error of a process that opens some names"
    done = subprocess.run([sys.executable, "-c", CODE, *names], env=environment(hub, cache, **env), text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


PINNED = f"hf://lab/tower@{COMMIT}/model.safetensors"


def test_what_is_downloaded_is_stated_before_and_found_again_without_a_network(hub, tmp_path):
    out, err = call(hub, tmp_path, "hf://lab/tower")
    assert out == [f"{PINNED} True {hashlib.sha256(SAFE).hexdigest()[:8]}"]
    assert err[0] == "downloading hf://lab/tower" and err[1].endswith(f"main, now {COMMIT}")
    assert "file        model.safetensors, 4.9 kB" in err and "licence     mit (by its card)" in err
    assert any(line.startswith("sha256 ") and len(line.split()[1]) == 64 for line in err)
    assert not any(request.endswith("run.py") for request in hub.requests)      # programs stay where they are
    hub.requests.clear()
    assert call(hub, tmp_path, "hf://lab/tower") == (out, [])
    assert not any(request.startswith("GET /cdn") for request in hub.requests)
    hub.requests.clear()
    assert call(hub, tmp_path, PINNED) == (out, []) and not hub.requests        # a commit never changes
    offline, note = call(hub, tmp_path, "hf://lab/tower", HF_HUB_OFFLINE="1")
    assert offline == out and not hub.requests
    assert note == [f"HF_HUB_OFFLINE is set; hf://lab/tower is commit {COMMIT} in the cache"]
    hub.stop()
    away, note = call(hub, tmp_path, "hf://lab/tower", PINNED)
    assert away == out*2 and "cannot be reached" in note[0]


def test_what_cannot_be_had_is_refused_in_one_line_with_a_remedy(hub, tmp_path):
    out, err = call(hub, tmp_path, "hf://lab/absent", "hf://lab/gone", "hf://lab/gated", "hf://lab/tower@v2",
                    "hf://lab/two", "hf://lab/tower/x.pt", "hf://lab/out", "hf-hub:lab/two")
    absent, gone, gated, revision, two, file, outside, folder = out
    assert absent.startswith("FileNotFoundError hf://lab/absent: the hub has no such repository, or it is private")
    assert gone.startswith("FileNotFoundError hf://lab/gone: the hub has no such repository") and "HF_TOKEN" in gone
    assert gated.startswith("PermissionError hf://lab/gated/config.json is gated: accept its terms on ")
    assert f"{hub.url}/lab/gated" in gated
    assert "no revision 'v2'; give a branch, a tag or a whole commit" in revision
    assert "2 files of weights: a.safetensors, b.safetensors; choose one, such as hf://lab/two/a.safetensors" in two
    assert "holds no x.pt; its files of weights are model.safetensors" in file
    assert "holds no file of weights" in outside            # the name that leads out is not looked at
    assert "holds no model.safetensors, but a.safetensors, b.safetensors" in folder
    assert in_cache(tmp_path) == []
    assert not list(tmp_path.rglob("outside*")) and not (tmp_path.parent/"outside.safetensors").exists()


def test_without_a_network_one_line_says_how_to_bring_the_file(hub, tmp_path):
    out, _ = call(hub, tmp_path, "hf://lab/tower", HF_HUB_OFFLINE="1")
    assert out[0].startswith("FileNotFoundError hf://lab/tower is not in the cache") and not hub.requests
    assert str(tmp_path) in out[0] and "once where there is a network" in out[0] and "give its path" in out[0]


def test_a_wrong_checksum_is_refused_and_nothing_of_it_stays(hub, tmp_path):
    out, _ = call(hub, tmp_path, "hf://lab/wrong")
    assert "what was downloaded is damaged" in out[0] and "and was removed" in out[0]
    assert in_cache(tmp_path) == ["9e26dfeeb6e641a33dae4961196235bdb965b21b"]       # of `{}`, the config
    again, _ = call(hub, tmp_path, "hf://lab/wrong", HF_HUB_OFFLINE="1")
    assert "is not in the cache" in again[0]
    hub.repos["lab/wrong"].sent.clear()
    healed, _ = call(hub, tmp_path, "hf://lab/wrong")
    assert " True " in healed[0]
    blob = next(path.resolve() for path in tmp_path.rglob("model.safetensors"))
    blob.write_bytes(OTHER)                     # damaged on the disk, much later
    found, _ = call(hub, tmp_path, "hf://lab/wrong", HF_HUB_OFFLINE="1")
    assert "the copy in the cache is damaged" in found[0] and not blob.exists()


def test_a_killed_download_leaves_nothing_that_is_used(hub, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", CODE, "hf://lab/cut"], env=environment(hub, tmp_path),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert hub.waits.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    offline, _ = call(hub, tmp_path, "hf://lab/cut", HF_HUB_OFFLINE="1")
    assert "is not in the cache" in offline[0]
    out, _ = call(hub, tmp_path, "hf://lab/cut")
    assert " True " in out[0]


def test_names_are_of_one_form():
    assert hub_name("hf://a/b@refs/pr/3/x/y.pt") == HubName("a/b", "refs/pr/3", "x/y.pt")
    for text in ("hf://a/b@main", "hf://a/b", "hf://a/b/m.pt", f"hf://a/b@{COMMIT}/m.pt"):
        assert hub_name(str(hub_name(text))) == hub_name(text)
    for text in ("hf://a", "hf://a/b@", "hf:///a/b", "hf://a/../b", "hf://a/b/../c", "hf://spaces/a/b", "hf-hub:a/b/c"):
        with pytest.raises(ValueError, match="no repository of models"): hub_name(text)


def test_weights_are_told_from_what_lies_beside_them():
    assert weights_in(["m.safetensors", "sub/n.safetensors", "m.bin"]) == ["m.safetensors"]
    assert weights_in(["sub/n.safetensors", "m.bin"]) == ["sub/n.safetensors"]
    assert weights_in(["m.bin", "training_args.bin", "optimizer.pt"]) == ["m.bin"]
    parts = {f"model-0000{i}-of-00002.safetensors": RepositoryFile() for i in (1, 2)}
    sharded = Repository(HubName("a/b"), COMMIT, parts, "", Path())
    with pytest.raises(ValueError, match="in 2 parts"): chosen_file(sharded)


def test_nothing_but_what_was_named_opens_a_socket(tmp_path):
    code = """
import socket, sys
def refuse(*args, **kw): raise AssertionError("a socket was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from reid_lab.cli.commands import main
calls = ["list", "models"], ["weights", "inspect", sys.argv[1]], ["weights", "inspect", "hf://lab/tower"]
print([main(argv) for argv in calls])
"""
    import torch
    from safetensors.torch import save_file
    save_file({"w": torch.zeros(2)}, tmp_path/"w.safetensors")
    done = subprocess.run([sys.executable, "-c", code, tmp_path/"w.safetensors"], text=True, capture_output=True,
                          env=environment("http://127.0.0.1:9", tmp_path), timeout=300)
    assert done.stdout.splitlines()[-1] == "[0, 0, 1]", done.stderr
    assert "a socket was opened" in done.stderr         # the third call names the hub: this test would notice
