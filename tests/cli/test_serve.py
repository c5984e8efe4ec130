"`reid_lab serve`: the answers of `search`, to those with the token, from this machine, and nothing else"
import http.client
import io
import json
import signal
import subprocess
import sys
import threading
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from PIL import Image

from reid_lab.cli.commands import main
from reid_lab.cli.serve import GalleryServer, OpenGallery, reply_to
from reid_lab.recipes.crops import model_of, open_features

SENTENCE = "a man in a red coat with a <b>zrxq</b>"


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    "Six crops, their features, and a file beside them that nobody may read"
    folder = tmp_path_factory.mktemp("served")
    pixels = np.random.default_rng(0).integers(0, 255, (6, 128, 64, 3), dtype=np.uint8)
    (folder/"crops").mkdir()
    for i, image in enumerate(pixels): Image.fromarray(image).save(folder/"crops"/f"{i//2:04d}_c{i % 2 + 1}_{i}.png")
    (folder/"secret.png").write_bytes((folder/"crops"/"0000_c1_0.png").read_bytes())
    assert main(["embed", str(folder/"crops"), "--model", "clip_tiny", "--out", str(folder/"f.npz")]) == 0
    return folder/"f.npz"


@pytest.fixture(scope="module")
def server(features):
    e = open_features(features)
    with GalleryServer(OpenGallery(e, model_of(e), k=4)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server, place, method="GET", host=None, token=None):
    "Status, headers and body of a request"
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    connection.putrequest(method, f"/{server.token if token is None else token}/{place}", skip_host=True)
    connection.putheader("Host", host or urlsplit(server.address).netloc)
    connection.endheaders()
    reply = connection.getresponse()
    return reply.status, dict(reply.getheaders()), reply.read()


def test_answers_are_those_of_search(server, features, capsys):
    assert main(["search", str(features), SENTENCE, "-k", "4", "--json"]) == 0
    expected, = json.loads(capsys.readouterr().out)
    status, headers, body = ask(server, f"search?q={quote(SENTENCE)}")
    assert (status, headers["Content-Type"]) == (200, "application/json") and json.loads(body) == expected
    assert json.loads(ask(server, "search?row=2&k=6")[2])["results"][-1]["rank"] == 5     # without itself


def test_the_page_shows_the_list_and_escapes_the_question(server):
    status, headers, body = ask(server, f"?q={quote(SENTENCE)}&k=3")
    page = body.decode()
    assert status == 200 and page.count('<img src="image/') == 3 and page.count("alt=\"result ") == 3
    assert "<b>zrxq" not in page and "not read: " in page and "&lt;b&gt;zrxq" in page
    assert "default-src 'none'" in headers["Content-Security-Policy"] and "script" not in page
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
    status, _, body = ask(server, "?k=0&q=a+man")
    assert status == 400 and "k=0 must be a whole number" in body.decode()


def test_images_are_made_anew_and_named_by_row(server, features):
    status, headers, body = ask(server, "image/3")
    assert (status, headers["Content-Type"], Image.open(io.BytesIO(body)).size) == (200, "image/jpeg", (64, 128))
    for place in ("image/6", "image/-1", "image/99999999999999", "image/", "image/x", "image/1/2", "image/%31"):
        assert ask(server, place)[0] == 404, place


@pytest.mark.parametrize("place", ["../f.npz", "..%2ff.npz", "secret.png", "image/../secret.png", "/etc/passwd",
                                   "//etc",
                                   "image/..%2f..%2fsecret.png", "crops/0000_c1_0.png", "%00", "search/"])
def test_nothing_else_is_found(server, place):
    status, _, body = ask(server, place)
    assert status == 404 and (b"not found" in body or b"no image" in body)


def test_a_path_that_leaves_the_folder_is_no_image(features):
    "Features are files that somebody may have sent"
    e = open_features(features)
    e.path = np.array(["../secret.png"]*6)
    assert reply_to(OpenGallery(e, None), "image/0").status == 404


@pytest.mark.parametrize("token", ["", "x"*22, "é", "%"])
def test_without_the_token_nothing_is_found(server, token):
    for place in ("", "search?q=a", "image/0"): assert ask(server, place, token=quote(token))[0] == 404


def test_other_hosts_and_methods_are_refused(server):
    assert ask(server, "", host="evil.example")[0] == 403
    assert ask(server, "", host="127.0.0.1.evil.example:80")[0] == 403
    assert ask(server, "", host="localhost:9000")[0] == 200       # a tunnel
    assert ask(server, "", host="LocalHost:9000")[0] == 200       # names of hosts have no case
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        status, headers, _ = ask(server, "search?q=a+man", method)
        assert (status, headers["Allow"]) == (405, "GET")
    assert server.server_address[0] == "127.0.0.1"


def test_the_address_without_its_last_slash_leads_to_the_page(server):
    for query in ("", "?q=a&k=2"):
        connection = http.client.HTTPConnection(*server.server_address, timeout=60)
        connection.request("GET", f"/{server.token}{query}")
        reply = connection.getresponse()
        assert (reply.status, reply.getheader("Location")) == (308, f"/{server.token}/{query}")
    assert server.answer("localhost", "/elsewhere").status == 404


@pytest.mark.parametrize("query", ["q=", "q=" + "a"*2001, "row=x", "row=6", "k=201&row=1", "q=a&row=1", "path=/etc",
                                   "row=1&k=1e3", "q=a&q=b", "row=1&row=2", "row=1&k=1&k=2"])
def test_wrong_questions_are_refused(server, query):
    status, _, body = ask(server, f"search?{query}")
    assert status == 400 and json.loads(body)["error"]


def test_a_model_without_text_answers_rows(features):
    gallery = OpenGallery(open_features(features), None)
    assert reply_to(gallery, "search", "row=1").status == 200
    assert b"reads no sentences" in reply_to(gallery, "search", "q=a+man").body
    assert b"disabled" in reply_to(gallery, "").body


def test_the_command_prints_its_address_and_ends_with_ctrl_c(features):
    code = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)   # a shell's background job ignores it, and passes that on
from reid_lab.cli.commands import main
sys.exit(main(sys.argv[1:]))"""
    run = subprocess.Popen([sys.executable, "-c", code, "serve", str(features), "-k", "2"], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
    address = run.stdout.readline().split()[-1]
    assert urlsplit(address).hostname == "127.0.0.1" and len(urlsplit(address).path) > 20
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0 and out.endswith("stopped\n") and "Traceback" not in err, err


def test_a_port_in_use_and_wrong_options(server, features, capsys):
    port = str(server.server_address[1])
    assert main(["serve", str(features), "--port", port]) == 2
    assert f"--port {port} cannot be used" in capsys.readouterr().err
    assert main(["serve", str(features), "-k", "500"]) == 2
    with pytest.raises(SystemExit): main(["serve", str(features), "--port", "70000"])
