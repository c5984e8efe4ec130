"""A server on this machine that speaks the part of the hub's protocol that `huggingface_hub` uses to download.

Watched from the client: `GET /api/models/OWNER/NAME/revision/REVISION?blobs=true` for the list of files, then for each
file `HEAD` and `GET /OWNER/NAME/resolve/REVISION/FILE`; a large file is redirected, with its sum in `X-Linked-Etag`.
"""
import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".pt", ".pth")
GONE, GATED = "RepoNotFound", "GatedRepo"


@dataclass
class Repo:
    "A repository that the server holds"
    files: dict                         # path -> bytes
    card: dict = field(default_factory=dict)
    commit: str = COMMIT
    revisions: tuple = ("main",)
    refuses: str = ""                   # `GATED`: the list is shown and no file is given
    sent: dict = field(default_factory=dict)        # path -> bytes that are sent in place of the stated ones
    stops_at: int = 0                   # bytes of a large file after which the first download waits for ever


def git_sum(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _sibling(path, data):
    out = dict(rfilename=path, size=len(data), blobId=git_sum(data))
    if path.endswith(LARGE): out["lfs"] = dict(size=len(data), sha256=hashlib.sha256(data).hexdigest(), pointerSize=134)
    return out


class Hub:
    "The server, started on a free port; use it as a context"
    def __init__(self, **repos):
        self.repos = {name.replace("__", "/"): repo for name, repo in repos.items()}
        self.requests, self.waits = [], threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            def log_message(self, *args): pass
            def do_HEAD(self): outer.answer(self)
            def do_GET(self): outer.answer(self)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self): return f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_): self.stop()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def refuse(self, handler, status, code):
        headers = {"X-Error-Code": code, "X-Error-Message": code}
        self.send(handler, status, json.dumps(dict(error=code)).encode(), headers)

    def send(self, handler, status, body, headers=()):
        handler.send_response(status)
        for name, value in {**dict(headers), "Content-Length": str(len(body))}.items(): handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "GET": handler.wfile.write(body)

    def answer(self, handler):
        path = unquote(urlsplit(handler.path).path)
        self.requests.append(f"{handler.command} {path}")
        parts = path.strip("/").split("/")
        if parts[0] == "cdn": return self.large(handler, self.repos["/".join(parts[1:3])], "/".join(parts[3:]))
        api = parts[:2] == ["api", "models"]
        if api: parts = parts[2:]
        repo = self.repos.get("/".join(parts[:2]))
        if repo is None: return self.refuse(handler, 401, GONE)
        revision = parts[3] if len(parts) > 3 else "main"
        if revision not in (*repo.revisions, repo.commit): return self.refuse(handler, 404, "RevisionNotFound")
        if api: return self.listing(handler, "/".join(parts[:2]), repo)
        if repo.refuses: return self.refuse(handler, 403, repo.refuses)
        return self.resolve(handler, "/".join(parts[:2]), repo, "/".join(parts[4:]))

    def listing(self, handler, name, repo):
        if repo.refuses == GONE: return self.refuse(handler, 401, GONE)
        siblings = [_sibling(path, data) for path, data in repo.files.items()]
        body = dict(id=name, modelId=name, sha=repo.commit, siblings=siblings, cardData=repo.card, tags=[],
                    private=False, downloads=0, likes=0)
        self.send(handler, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def resolve(self, handler, name, repo, path):
        data = repo.files.get(path)
        if data is None: return self.refuse(handler, 404, "EntryNotFound")
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{git_sum(data)}"'}
        if not path.endswith(LARGE): return self.send(handler, 200, repo.sent.get(path, data), headers)
        headers |= {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data)),
                    "Location": f"http://localhost:{self.server.server_port}/cdn/{name}/{path}"}     # another host
        self.send(handler, 302, b"", headers)

    def large(self, handler, repo, path):
        data = repo.sent.get(path, repo.files[path])
        if not repo.stops_at or self.waits.is_set(): return self.send(handler, 200, data)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:repo.stops_at])
        handler.wfile.flush()
        self.waits.set()
        threading.Event().wait(60)


def environment(hub, cache, **more):
    "Of a process whose hub is the server, with a cache of its own"
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env |= dict(HF_ENDPOINT=hub if isinstance(hub, str) else hub.url, HF_HOME=str(cache), HF_HUB_DISABLE_TELEMETRY="1",
                HF_HUB_DISABLE_XET="1", REID_LAB_QUIET="1")
    return env | more


def python(code, hub, cache, **more):
    "A process of its own that runs some lines"
    return subprocess.run([sys.executable, "-c", code], env=environment(hub, cache, **more), capture_output=True,
                          text=True, timeout=300)


def in_cache(cache):
    "Names of the files in a cache that hold something, without lists and locks"
    root = Path(cache)/"hub"
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(path.name for path in files if path.parent.name == "blobs")
