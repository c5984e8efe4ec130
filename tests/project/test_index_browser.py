"""The index opens and runs in JupyterLab, in a real browser.

Chromium comes from the system (`apt-get install chromium`), its driver from the `playwright` package; nothing is
downloaded.
"""
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update",
         "--disable-sync", "--disable-dev-shm-usage"]
pytestmark = [pytest.mark.browser,
              pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    "(address, token) of a JupyterLab on this tree"
    with serve(ROOT, tmp_path_factory.mktemp("jupyter")) as found: yield found


@contextmanager
def serve(root, home, **env):
    "(address, token) of a JupyterLab on the folder `root` that knows nothing of the user's settings"
    token = secrets.token_hex(8)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, IN_TEST="1", OMP_NUM_THREADS="1", **env,
               REID_LAB_CACHE=os.environ.get("REID_LAB_CACHE") or str(home/"cache"))
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR",
                 "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR"):
        env[name] = str(home/name.lower())
    news = home/"jupyterlab_settings_dir"/"@jupyterlab"/"apputils-extension"
    news.mkdir(parents=True)
    (news/"notification.jupyterlab-settings").write_text(json.dumps(dict(fetchNews="false", checkForUpdates=False)))
    log = (home/"log.txt").open("w")
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
         "--ServerApp.port_retries=0",
         f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}", "--allow-root", "--expose-app-in-browser",
         "--LabApp.news_url=None",
         "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"], env=env, stdout=log, stderr=log,
                              start_new_session=True)
    try:
        wait(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}", timeout=2), server,
             home/"log.txt")
        yield f"http://127.0.0.1:{port}", token
    finally:
        stop(server)
        log.close()


def wait(call, server, log, seconds=180):
    "Until the server answers"
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-2000:]
        try: return call()
        except (urllib.error.URLError, OSError): time.sleep(.3)
    raise TimeoutError(f"JupyterLab did not answer within {seconds} s\n{log.read_text()[-2000:]}")


def stop(server):
    "End the server and the kernels it started"
    os.killpg(server.pid, signal.SIGTERM)
    try: server.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(5)


def test_index_runs_in_the_browser(lab, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    address, token = lab
    before = (ROOT/"nbs"/"index.ipynb").read_bytes()
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        broken = []
        page.on("pageerror", lambda e: broken.append(str(e)))
        page.goto(f"{address}/lab/tree/nbs/index.ipynb?token={token}&reset", wait_until="domcontentloaded")
        panel = "window.jupyterapp?.shell?.currentWidget"
        page.wait_for_function(f"{panel}?.context?.sessionContext?.session?.kernel?.status === 'idle'", timeout=90_000)
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')", None)
        outputs = page.evaluate(f"() => Array.from({panel}.content.model.cells).filter(c => c.type === 'code')"
                                ".map(c => c.outputs.toJSON())")
        page.screenshot(path=str(tmp_path/"index.png"))
        browser.close()
    errors = [o for cell in outputs for o in cell if o["output_type"] == "error"]
    assert not errors and not broken, (errors, broken)
    assert any("score" in json.dumps(o) for cell in outputs for o in cell), "the search should print scores"
    assert (ROOT/"nbs"/"index.ipynb").read_bytes() == before
