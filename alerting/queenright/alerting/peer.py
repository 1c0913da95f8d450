"""The address of one Alertmanager."""

from __future__ import annotations

from dataclasses import dataclass

from queenright.instrumentation.api_address import ApiAddress, read_base_url


@dataclass(frozen=True, slots=True)
class PeerAddress(ApiAddress):
    """The address of one Alertmanager."""

    @classmethod
    def parse(cls, url: str) -> PeerAddress:
        """
        Parse a peer's URL.

        Raises:
            ValueError: The URL is not an http or https URL with a host. The message contains no credentials.
        """
        return cls(*read_base_url(url, port=9093))
