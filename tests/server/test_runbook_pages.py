"""The runbook pages of the service."""

from __future__ import annotations

import re

import httpx

from queenright.alerting.files import runbooks_folder


async def test_each_runbook_page_has_valid_links(http: httpx.AsyncClient) -> None:
    pages = {path.stem: await http.get(f"/runbooks/{path.stem}") for path in runbooks_folder().glob("*.md")}

    assert {page.status_code for page in pages.values()} == {200}
    link_count = 0
    for name, page in pages.items():
        body = page.text.partition("<main")[2]
        assert f"<h1>{name}</h1>" in body
        assert "| ---" not in body, f"{name} has a table that is not rendered"
        for target in re.findall(r'href="([^"]+)"', body):
            assert target in pages, f"{name} links to {target}"
            link_count += 1
    assert link_count
