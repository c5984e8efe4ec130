"JupyterLab on a folder, and chromium on its pages"
import json
import os
import random
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

import pytest

from helpers import ROOT

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]
WEBGL = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]    # drawn by the processor
NEEDS_CHROMIUM = [pytest.mark.browser,
                  pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)")]


def free_port():
    "A port below those that the system gives to whoever asks for any, such as kernels, which could be faster"
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as s:
            try: s.bind(("127.0.0.1", port))
            except OSError: continue
        return port
    raise OSError("no free port was found")


@contextmanager
def serve(root, home, **env):
    "(address, token) of a JupyterLab on the folder `root` that knows nothing of the user's settings"
    token = secrets.token_hex(8)
    port = free_port()
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
         "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}",
         "--allow-root", "--expose-app-in-browser", "--LabApp.news_url=None",
         "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"],
        env=env, stdout=log, stderr=log, start_new_session=True)
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


PANEL = "window.jupyterapp?.shell?.currentWidget"
POINT = """(nth) => {
  const plot = document.querySelector(".rl-plot"), layout = plot._fullLayout, trace = plot.data[2];
  const box = plot.getBoundingClientRect();
  const place = (i) => [layout.xaxis.l2p(trace.x[i]) + layout._size.l, layout.yaxis.l2p(trace.y[i]) + layout._size.t];
  const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
  const far = (i) => Math.min(...trace.x.map((_, j) => j === i ? 1e9 : apart(place(i), place(j))));
  const apartest = [...trace.x.keys()].slice(0, 200).sort((a, b) => far(b) - far(a));
  return place(apartest[nth ?? 0]).map((v, d) => v + (d ? box.top : box.left));
}"""


def opened(p, **kw):
    "A browser, an empty page of it, and the list of the page's errors"
    browser = p.chromium.launch(executable_path=CHROMIUM, args=[f for f in FLAGS if f != "--disable-gpu"] + WEBGL)
    page, broken = browser.new_page(viewport=dict(width=1280, height=1000), **kw), []
    page.on("pageerror", lambda e: broken.append(str(e)))
    page.on("dialog", lambda d: (broken.append("a script of a caption ran") if d.type == "alert" else None, d.accept()))
    page.set_default_timeout(150_000)
    return browser, page, broken


def execute(page, command, **kw): page.evaluate("a => window.jupyterapp.commands.execute(...a)", [command, kw])


def wait_for_kernel(page):
    page.wait_for_function(f"{PANEL}?.context?.sessionContext?.session?.kernel?.status === 'idle'")


@contextmanager
def lab_page(notebook, **env):
    "The notebook in a JupyterLab on its folder, told to run all cells; and the list of the page's errors"
    from playwright.sync_api import sync_playwright
    home = notebook.parent/"home"
    home.mkdir()
    env["PYTHONPATH"] = str(ROOT)
    with serve(notebook.parent, home, **env) as (address, token), sync_playwright() as p:
        browser, page, broken = opened(p)
        page.goto(f"{address}/lab/tree/{notebook.name}?token={token}&reset", wait_until="domcontentloaded")
        wait_for_kernel(page)
        execute(page, "notebook:run-all-cells")
        yield page, broken
        browser.close()


def dark(page):
    "The other theme of JupyterLab"
    execute(page, "apputils:change-theme", theme="JupyterLab Dark")
    page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
    page.wait_for_timeout(500)
    page.wait_for_selector("#jupyterlab-splash", state="detached")


def shoot(page, path, first):
    "A screenshot from the first view of this kind on"
    page.evaluate(f"document.querySelector('.rl-{first}').scrollIntoView()")
    page.screenshot(path=str(path))


def cockpit_is_drawn(page):
    for kind, n in (("cameras[data-cockpit]", 1), ("map[data-marks]", 2), ("pairs[data-cells]", 2)):
        page.wait_for_function(f"document.querySelectorAll('.rl-{kind}').length === {n}")
