"""Stand-ins for the two places that models come from: a directory of wheels, and a hub on the loopback interface."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from octavo.store.aliases import WheelPart


class RecordingProgress:
    """Keeps what was reported."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def bar(self, label: str, total: int, done: Callable[[], int]) -> RecordingProgress:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *details: object) -> None:
        pass


class WheelShelf:
    """A directory that pip takes wheels from instead of from an index."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(self, part: WheelPart, members: dict[str, bytes], metadata: str = "", licence_file: str = "") -> Path:
        module = part.package.replace("-", "_")
        info = f"{module}-{part.version}.dist-info"
        path = self.directory / f"{module}-{part.version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, content in members.items():
                wheel.writestr(f"{module}/{name}", content)
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {part.package}\nVersion: {part.version}\n{metadata}"
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
            if licence_file:
                wheel.writestr(f"{info}/{licence_file}", "Do as you like.")
        return path


@dataclass
class HubRepo:
    """One repository of the fake hub. Files whose names are in `lfs` have a sha256 and are served by a second host."""

    files: dict[str, bytes]
    lfs: frozenset[str] = frozenset()
    card: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    gated: bool = False
    announced_sha256: dict[str, str] = field(default_factory=dict)
    info: bytes | None = None  # sent instead of the description

    @property
    def commit(self) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        for name, content in sorted(self.files.items()):
            digest.update(name.encode() + content)
        return digest.hexdigest()


@dataclass(frozen=True)
class HubRequest:
    method: str
    path: str
    range: str | None
    authorization: str | None


class FakeHub:
    """The part of the hub's protocol that a download uses. `stall_after` bytes of a body, it stops sending."""

    def __init__(self) -> None:
        self.repos: dict[str, HubRepo] = {}
        self.requests: list[HubRequest] = []
        self.stall_after: int | None = None
        self.stalled = threading.Event()
        self.resume = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.resume.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        headers = request.headers
        self.requests.append(HubRequest(request.command, path, headers.get("Range"), headers.get("Authorization")))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._answer_info(request, "/".join(parts[2:4]))
        elif parts[0] == "storage":
            self._answer_file(request, self.repos["/".join(parts[1:3])], "/".join(parts[3:]), body)
        else:
            self._answer_resolve(request, "/".join(parts[:2]), "/".join(parts[4:]), body)

    def _answer_info(self, request: BaseHTTPRequestHandler, name: str) -> None:
        repo = self.repos.get(name)
        if repo is None:
            self._send(request, 404, {"X-Error-Code": "RepoNotFound"}, b"{}", body=True)
            return
        siblings = []
        for file, content in repo.files.items():
            sibling: dict[str, object] = {"rfilename": file, "size": len(content), "blobId": "0" * 40}
            if file in repo.lfs:
                sha256 = repo.announced_sha256.get(file, hashlib.sha256(content).hexdigest())
                sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
            siblings.append(sibling)
        info = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings, "tags": list(repo.tags)}
        if repo.card:
            info["cardData"] = repo.card
        content = json.dumps(info).encode() if repo.info is None else repo.info
        self._send(request, 200, {"Content-Type": "application/json"}, content, body=True)

    def _answer_resolve(self, request: BaseHTTPRequestHandler, name: str, file: str, body: bool) -> None:
        repo = self.repos.get(name)
        if repo is None or file not in repo.files:
            code = "RepoNotFound" if repo is None else "EntryNotFound"
            self._send(request, 404, {"X-Error-Code": code}, b"", body=body)
        elif repo.gated:
            self._send(request, 403, {"X-Error-Code": "GatedRepo"}, b"", body=body)
        elif file in repo.lfs:
            content = repo.files[file]
            location = f"http://localhost:{self.port}/storage/{name}/{file}"
            linked = {
                "Location": location,
                "X-Repo-Commit": repo.commit,
                "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                "X-Linked-Size": str(len(content)),
            }
            self._send(request, 302, linked, b"", body=body)
        else:
            self._answer_file(request, repo, file, body)

    def _answer_file(self, request: BaseHTTPRequestHandler, repo: HubRepo, file: str, body: bool) -> None:
        content = repo.files[file]
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": repo.commit,
            "Accept-Ranges": "bytes",
        }
        wanted = request.headers.get("Range")
        if wanted is None:
            self._send(request, 200, headers, content, body=body)
            return
        start = int(wanted.removeprefix("bytes=").partition("-")[0])
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(request, 206, headers, content[start:], body=body)

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes, *, body: bool
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if not body:
            return
        try:
            if self.stall_after is not None and len(content) > self.stall_after:
                request.wfile.write(content[: self.stall_after])
                self.stalled.set()
                self.resume.wait(60)
                request.close_connection = True
            else:
                request.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):  # the client was killed, as the test intends
            request.close_connection = True
