"""Finds the outcome of a commit whose answer was lost: the server knows each transaction by its number."""

from __future__ import annotations

import time
from contextlib import suppress

import psycopg

from hermes.errors import StoreUnreachable
from hermes.store.engines.postgres.pool import PooledConnection
from hermes.store.engines.postgres.transaction import PostgresTx

# Waits until the replicas that have to confirm commits have everything up to here.
_CONFIRM = (
    b"SELECT CASE WHEN current_setting('synchronous_standby_names') <> ''"
    b" THEN pg_logical_emit_message(true, 'hermes', '') END"
)
_STATUS = b"SELECT pg_xact_status(%s::xid8)"
_END = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_xid::text = %s"


def was_stored(connection: PooledConnection, tx: PostgresTx) -> bool | None:
    """Whether a transaction was committed; None as long as that is unknown.

    After a crash or a failover the server may have given its number to another one, so its stored message is checked.
    """
    if not connection.timeline:
        return None  # a replica; perhaps it is about to take over
    try:
        row = connection.execute(_STATUS, (tx.xid,)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return False  # this server has not reached that number yet
    status = None if row is None else row[0]
    if status == "aborted":
        return False
    if status != "committed":
        return None  # the server has not noticed the lost connection yet
    if tx.evidence is not None:
        sql = b"SELECT 1 FROM messages WHERE id = %s AND timestamp = %s"
        if connection.execute(sql, tx.evidence).fetchone() is None:
            return False
    elif (connection.timeline, connection.started_at) != (tx.connection.timeline, tx.connection.started_at):
        return None
    connection.committing = True  # it waits for replicas as a commit does
    try:
        connection.execute(_CONFIRM)
    finally:
        connection.committing = False
    return None if connection.unconfirmed else True


def wait_for(unsettled: list[PostgresTx], connection: PooledConnection, end: float, where: str) -> None:
    """Wait until the server has decided on commits with unknown outcome; they are removed from the list.

    Until then nothing is read or stored: a program that checks whether something was stored, and stores it again if not,
    must not be overtaken by a commit that was still in progress. StoreUnreachable when it takes until `end`.
    """
    for tx in list(unsettled):
        while _is_open(connection, tx):
            if time.monotonic() > end:
                raise StoreUnreachable(f"{where} has not yet decided an earlier commit; nothing was stored, try again")
            with suppress(psycopg.errors.InsufficientPrivilege):  # its session waits for a client that is gone
                connection.execute(_END, (tx.connection.process, str(int(tx.xid or 0) % (1 << 32))))
            time.sleep(0.05)
        with suppress(ValueError):  # another thread removed it first
            unsettled.remove(tx)


def _is_open(connection: PooledConnection, tx: PostgresTx) -> bool:
    try:
        row = connection.execute(_STATUS, (tx.xid,)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return False  # after a failover: this server does not have it
    return row is not None and row[0] == "in progress"
