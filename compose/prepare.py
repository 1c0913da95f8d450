"""
Prepare the files that ``docker-compose.yml`` mounts: secrets, tokens and Alertmanager's configuration.

``make compose`` runs it. The files are in ``compose/secrets/``. Existing files are kept, so that it can run
again after a secret was added, or to show which receivers are still off.
"""

from __future__ import annotations

import argparse
import ipaddress
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from queenright.alerting.config import render_alertmanager, without_receivers

COMPOSE: Final = Path(__file__).parents[1] / "docker-compose.yml"
SECRETS: Final = Path(__file__).parent / "secrets"
CONSOLE: Final = "http://127.0.0.1:8420"
_IN_CONTAINERS: Final = Path("/run/secrets")
_TOKENS: Final = {"queenright_token": ("stack", "reporter", "never"), "admin_token": ("admin", "admin", "1y")}
_RECEIVERS: Final = {
    "slack_api_url": "Slack: the URL of an incoming webhook",
    "pagerduty_routing_key": "PagerDuty: an integration key of the Events API v2",
    "deadman_url": "Dead-man check: a URL outside of this machine that expects a ping every minute",
}


def prepare(folder: Path) -> list[str]:
    """
    Write the missing files, and return the receivers that are on.

    Raises:
        SystemExit: A secret cannot be used. The message names it and the fix.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (folder / "grafana_admin_password").exists():
        _write_file(folder / "grafana_admin_password", secrets.token_urlsafe(24))
    for name in _RECEIVERS:
        if not (folder / name).exists():
            _write_file(folder / name, "")
    _create_tokens(folder)
    enabled = [name for name in _RECEIVERS if _read_file(folder / name)]
    deadman_url = _read_file(folder / "deadman_url")
    for name in ("slack_api_url", "deadman_url"):
        url = urlsplit(_read_file(folder / name))
        if name in enabled and not (url.scheme in ("http", "https") and url.hostname):
            sys.exit(f"{folder / name} does not hold a URL; write one into it, or empty the file")
    if _is_in_the_stack(urlsplit(deadman_url).hostname):
        sys.exit(
            f"{folder / 'deadman_url'} is {deadman_url!r}, which is in the stack that it watches, and stops "
            "with it. Write the URL of a check that runs elsewhere into it, or empty the file."
        )
    config = render_alertmanager(
        service_url="http://queenright:8420",
        slack_api_url_file=_IN_CONTAINERS / "slack_api_url",
        pagerduty_routing_key_file=_IN_CONTAINERS / "pagerduty_routing_key",
        deadman_url=deadman_url or "http://127.0.0.1/",
        templates=Path("/etc/alertmanager/templates"),
        token_file=_IN_CONTAINERS / "queenright_token",
        header="# Written by `make compose`; changes here are lost.",
    )
    _write_file(
        folder / "alertmanager.yml",
        without_receivers(
            config,
            slack="slack_api_url" not in enabled,
            pagerduty="pagerduty_routing_key" not in enabled,
            deadman=not deadman_url,
        ),
    )
    return enabled


def main() -> int:
    """Prepare the folder, and print which receivers are on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=SECRETS, help="default: %(default)s")
    folder = parser.parse_args().folder
    enabled = prepare(folder)
    print(f"Prepared {folder}.")
    for name, title in _RECEIVERS.items():
        state = "on " if name in enabled else "off"
        print(f"  {state}  {title} ({folder / name})")
    print("To turn a receiver on, write its value into its file and run `make compose` again.")
    print(f"Console: {CONSOLE}, sign in with the token in {folder / 'admin_token'}.")
    print(f"Grafana: http://127.0.0.1:3000, user admin, password in {folder / 'grafana_admin_password'}.")
    return 0


def _create_tokens(folder: Path) -> None:
    for file, (name, role, expires) in _TOKENS.items():
        if (folder / file).exists() and (folder / "tokens.json").exists():
            continue
        command = [str(Path(sys.executable).with_name("queenright")), "token", "create", name]
        command += ["--role", role, "--expires", expires, "--tokens-file", str(folder / "tokens.json")]
        process = subprocess.run(command, text=True, capture_output=True, check=False)
        if process.returncode != 0:
            # The file of hashes has a token whose own file is missing.
            sys.exit(
                f"{process.stderr.strip()}\nThe token of {folder / file} cannot be read back: "
                f"delete {folder / 'tokens.json'} and run `make compose` again."
            )
        _write_file(folder / file, process.stdout.strip())
    (folder / "tokens.json").chmod(0o444)


def _is_in_the_stack(host: str | None) -> bool:
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    if host in {*services, "localhost", "host.docker.internal"}:
        return True
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_file(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip()


def _write_file(file: Path, text: str) -> None:
    """Write a file that the containers' users can read; the folder's mode keeps others on the machine out."""
    # Written in place: a container sees the file that existed when it started.
    file.write_text(text, encoding="utf-8")
    file.chmod(0o644)


if __name__ == "__main__":
    sys.exit(main())
