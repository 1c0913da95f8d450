"""The console: a browser application that uses only the API. ``make console`` builds its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

CONSOLE_FILES: Final = Path(__file__).parents[1] / "pages" / "console"
_PAGE_HEADERS: Final = {
    # Nothing is loaded from other hosts. The hash allows the only style that react-aria-components adds.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "style-src 'self' 'sha256-38RhXrc7EdReTKsOm23ZPOCUgniTUUcjky8QOOrQx6o='; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


class _Assets(StaticFiles):
    """Files that browsers may cache for a year, because their names contain a hash of the content."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response


def add_console(app: FastAPI) -> None:
    """Add the console to an app."""
    app.mount(
        "/console/assets", GZipMiddleware(_Assets(directory=CONSOLE_FILES / "assets"), minimum_size=1000)
    )
    app.include_router(router)


@router.get("/console/icon.svg")
async def get_icon() -> FileResponse:
    """Return the icon."""
    return FileResponse(CONSOLE_FILES / "icon.svg", media_type="image/svg+xml")


@router.get("/console")
@router.get("/console/{path:path}")
async def get_console(path: str = "") -> FileResponse:
    """Return the HTML document of the console, which renders every page below ``/console``."""
    return FileResponse(CONSOLE_FILES / "index.html", headers=_PAGE_HEADERS)
