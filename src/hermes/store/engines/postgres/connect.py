"""The connection parameters for libpq, and what a server reports on connecting."""

from __future__ import annotations

from psycopg.conninfo import make_conninfo

from hermes.errors import InvalidInput
from hermes.store.engines.postgres import error_mapping, migrate

_DEFAULTS: dict[str, str | int] = {
    "client_encoding": "UTF8",
    "connect_timeout": 10,
    "application_name": migrate.APPLICATION,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
SERVER = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,"
    " pg_postmaster_start_time()::text, current_setting('synchronous_standby_names') <> '',"
    " extract(epoch FROM clock_timestamp())::float8, pg_backend_pid(), current_setting('search_path')"
)


def conninfo(url: str, read_only: bool) -> str:
    """The parameters for libpq: the URL, and defaults for what it does not set."""
    given = error_mapping.parts(url)
    if given is None:  # libpq's message may quote the password
        raise InvalidInput(
            "the URL of the store is invalid; in names and passwords write : / @ % and the like as %3A %2F %40 %25"
        )
    defaults = dict(_DEFAULTS)
    if given.get("application_name") == migrate.OLDER_APPLICATION:
        del given["application_name"]  # the name of older programs, which may no longer write
    if "," in str(given.get("host") or given.get("hostaddr") or "") and not read_only:
        defaults["target_session_attrs"] = "read-write"  # of several servers the primary
    return make_conninfo(url, **{key: value for key, value in defaults.items() if key not in given})
