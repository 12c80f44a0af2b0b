"""The chat page: `index.html` and what it needs beside it, served as files. No build step, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from starlette.responses import Response

FOLDER = Path(__file__).parent
SHOWN = (".html", ".js", ".css", ".svg", ".png", ".ico", ".webmanifest")
POLICY = "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class Files(StaticFiles):
    """Files of the page, that no other page may frame and that load nothing from elsewhere."""

    def lookup_path(self, path: str) -> tuple[str, Any]:
        if Path(path).suffix not in SHOWN and path not in ("", "."):
            return "", None
        return super().lookup_path(path)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["content-security-policy"] = POLICY
        response.headers["x-content-type-options"] = "nosniff"
        response.headers["referrer-policy"] = "no-referrer"
        response.headers["cache-control"] = "no-cache"
        return response


def mount_page(app: FastAPI) -> None:
    """Serve the page's files at `/`, behind everything else."""
    app.mount("/", Files(directory=FOLDER, html=True), name="page")
