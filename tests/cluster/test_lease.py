"""The lease, on a real PostgreSQL."""

from __future__ import annotations

from queenright.health.cluster_lease import ClusterLease, Member
from queenright.health.engines import parse_address
from tests.databases import Postgres


async def test_database_without_tables_is_vacant(postgres: Postgres) -> None:
    """The first owner creates the tables, and that of a new version the tables that are new."""
    url = postgres.empty()
    member = Member(member_id="one", host="127.0.0.1", api_port=1, otlp_port=2, version="1")
    lease = ClusterLease(parse_address(url), member)

    view = await lease.look()

    assert (view.is_vacant, view.members) == (True, ())
    await lease.close()
    postgres.drop(url)
