"""The chat page: `index.html` and what it needs beside it, served as files. No build step, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from starlette.responses import Response

FOLDER = Path(__file__).parent
KINDS = {  # said by us: a Windows registry may call a script plain text, and no browser would run it then
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class Files(StaticFiles):
    """Files of the page, that no other page may frame and that load nothing from elsewhere."""

    def lookup_path(self, path: str) -> tuple[str, Any]:
        if Path(path).suffix not in KINDS and path not in ("", "."):
            return "", None
        return super().lookup_path(path)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        kind = KINDS.get(Path(args[0]).suffix)
        if kind and "content-type" in response.headers:
            response.headers["content-type"] = kind
        response.headers["content-security-policy"] = POLICY
        response.headers["x-content-type-options"] = "nosniff"
        response.headers["referrer-policy"] = "no-referrer"
        response.headers["cache-control"] = "no-cache"
        return response


def is_file(path: str) -> bool:
    """Whether the page has something at this path of an address."""
    name = path.lstrip("/") or "index.html"
    return "/" not in name and Path(name).suffix in KINDS and (FOLDER / name).is_file()


def mount_page(app: FastAPI) -> None:
    """Serve the page's files at `/`, behind everything else."""
    app.mount("/", Files(directory=FOLDER, html=True), name="page")
