"""The address of one Alertmanager."""

from __future__ import annotations

from dataclasses import dataclass

from queenright.instrumentation.api_address import ApiAddress, read_base_url


@dataclass(frozen=True, slots=True)
class PeerAddress(ApiAddress):
    """One Alertmanager."""

    @classmethod
    def parse(cls, url: str) -> PeerAddress:
        """
        Read a peer's URL.

        Raises:
            ValueError: it is no http or https URL with a host; the message holds no credentials.
        """
        return cls(*read_base_url(url, port=9093))
