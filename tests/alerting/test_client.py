from __future__ import annotations

import logging
import traceback

import pytest

from queenright.alerting.alertmanager import (
    AlertmanagerClient,
    AlertmanagerError,
    AlertsRejectedError,
    PeerUnavailableError,
    PostedAlert,
)
from queenright.alerting.peer import PeerAddress
from tests.alerting.conftest import ServedPeer
from tests.alerting.parts import T0

ALERT = PostedAlert(labels={"agent": "a"}, annotations={}, starts_at=T0, ends_at=T0 + 60)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, AlertsRejectedError),
        (413, AlertsRejectedError),
        (422, AlertsRejectedError),
        (302, PeerUnavailableError),
        (401, PeerUnavailableError),
        (404, PeerUnavailableError),
        (429, PeerUnavailableError),
        (500, PeerUnavailableError),
    ],
)
async def test_only_client_errors_blame_the_alert(
    peer: ServedPeer, status: int, kind: type[AlertmanagerError]
) -> None:
    peer.peer.status = status
    client = AlertmanagerClient()
    with pytest.raises(AlertmanagerError) as error_info:
        await client.post_alerts(PeerAddress.parse(peer.url), [ALERT])
    await client.aclose()

    assert type(error_info.value) is kind
    assert str(error_info.value) == f"Alertmanager {peer.url}: {status} not now"


@pytest.mark.parametrize("status", [200, 400, 503])
async def test_credentials_are_sent_but_not_shown(
    peer: ServedPeer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    address = PeerAddress.parse(peer.url.replace("http://", "http://us%40er:hunter2@"))
    peer.peer.status = status
    client = AlertmanagerClient()
    texts = repr(address) + repr(client)
    try:
        await client.post_alerts(address, [ALERT])
    except AlertmanagerError:
        texts += traceback.format_exc()
    await client.aclose()

    assert peer.peer.authorization == ["Basic dXNAZXI6aHVudGVyMg=="]
    assert "hunter2" not in texts + caplog.text
    assert "dXNAZXI" not in texts + caplog.text


async def test_connection_error_has_no_credentials() -> None:
    secret = "hunter" + str(2)  # the traceback also has the lines of this file
    client, address = AlertmanagerClient(), PeerAddress.parse(f"http://u:{secret}@127.0.0.1:1")
    with pytest.raises(
        PeerUnavailableError, match=r"^Alertmanager http://127.0.0.1:1: cannot be reached$"
    ) as error_info:
        await client.post_alerts(address, [ALERT])
    await client.aclose()

    assert not error_info.value.was_reached
    assert secret not in "".join(traceback.format_exception(error_info.value))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://am:9093", "http://am:9093"),
        ("https://am/prefix/", "https://am/prefix"),
        ("http://u:p@[::1]:9093", "http://[::1]:9093"),
    ],
)
def test_address_is_named_without_its_credentials(url: str, name: str) -> None:
    assert PeerAddress.parse(url).name == name


@pytest.mark.parametrize(
    "url", ["", "am:9093", "ftp://am", "http://", "http://u:hunter2@am:x", "http://am/?t=hunter2"]
)
def test_bad_address_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as error_info:
        PeerAddress.parse(url)
    assert "hunter2" not in str(error_info.value)
