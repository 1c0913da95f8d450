"""
Processes of two versions share a database during a rolling upgrade with a migration of the newer version.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest

import queenright.health.store.database as database_module
from queenright.health.store.tables import SCHEMA_REVISION
from tests.cluster.conftest import Cluster
from tests.cluster.test_partitions import wait_for_faults
from tests.cluster.test_takeover import Sender, make_tool_spans, wait_for_calls
from tests.databases import connected

pytestmark = pytest.mark.asyncio

MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{SCHEMA_REVISION}"
branch_labels = None
depends_on = None
oldest_compatible = "OLDEST"


def upgrade():
    op.add_column("tickets", sa.Column("mood", sa.Text))
"""


def migrate(url: str, folder: Path, oldest_compatible: str) -> None:
    """Migrate the database as a newer version would."""
    from alembic import command
    from alembic.config import Config

    (folder / "v9000_mood.py").write_text(MIGRATION.replace("OLDEST", oldest_compatible))
    migrations = Path(database_module.__file__).parent / "migrations"
    config = Config()
    config.set_main_option("script_location", str(migrations))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join([str(migrations / "versions"), str(folder)]))
    with connected(url) as conn:
        config.attributes["connection"] = conn
        command.upgrade(config, "head")


async def test_older_process_takes_over_while_the_schema_is_compatible(
    cluster: Cluster, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """B120: the older process stores what was acknowledged, and keeps the newer schema."""
    owner = cluster.add()
    await cluster.owner()
    standby = cluster.add()
    sender = Sender(client, [owner, standby])
    await sender.send(make_tool_spans("clerk", "order-7", 5))
    await asyncio.to_thread(migrate, cluster.database, tmp_path, SCHEMA_REVISION)
    owner.kill()
    sender.processes = [standby]
    await sender.send(make_tool_spans("clerk", "order-7", 5))

    assert await cluster.owner() is standby
    assert len(await wait_for_calls(cluster, 10)) == 10
    with connected(cluster.database) as conn:
        assert conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "9000"
    assert "Traceback" not in standby.log()


async def test_older_process_does_not_take_over_an_incompatible_schema(
    cluster: Cluster, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    await asyncio.to_thread(migrate, cluster.database, tmp_path, "9000")
    process = cluster.add()

    fault_text = "has a schema that this version does not know (9000; "
    faults = await wait_for_faults(client, process, lambda faults: fault_text in "\n".join(faults))

    assert "use the version of queenright that wrote it" in "\n".join(faults)
    assert fault_text in process.log()
    assert (await client.get(f"{process.url}/readyz")).status_code == 503
