"""The part of SessionDB about retention, deletion, meta values, leases and handoffs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Concatenate

from hermes.errors import InvalidInput
from hermes.store import leases
from hermes.store.api.arguments import checked_period, checked_text
from hermes.store.api.open import END, OpenStore, P, R
from hermes.store.engines.base import Tx, get_meta, set_meta
from hermes.store.records import listing, sessions
from hermes.store.records.rows import (
    AuditEntry,
    HandoffState,
    MaintenanceResult,
    PendingHandoff,
    ShredResult,
    TrashedSession,
)
from hermes.store.upkeep import retention

_HANDOFF = ("handoff", "handoff_state", "handoff_platform", "handoff_error")


class UpkeepCalls(OpenStore):
    """Trash, pruning, key/value meta, leases and handoffs."""

    # ------------------------------------------------------------------------------------------ keeping and removing

    def delete_session(self, session_id: str, sessions_dir: Path | str | None = None, *, by: str = "") -> bool:
        """Delete a session at once, with its transcript and attachments; its children stay, without a parent."""
        self._transcripts.also_in = None if sessions_dir is None else Path(sessions_dir)
        self.drafts.forget(session_id)
        return retention.purge(self._engine, session_id, by, self._transcripts)

    def shred_session(self, session_id: str, *, by: str = "") -> ShredResult | None:
        """Delete the whole conversation a session is part of, so that no file of the store holds a word of it; None when
        there is no such session.

        What it owned is afterwards in no table, index, free page, log, transcript, draft or attachment. The audit
        log records when and how many messages, not what. A conversation that a process holds is SessionBusy, one of which
        another session shows messages is InvalidInput; nothing is deleted then. After a crash, the same call does the rest.
        """
        from hermes.store.upkeep import shred

        return shred.shred(self, session_id, by)

    def prune_sessions(
        self,
        older_than_days: float = 90,
        source: str | None = None,
        sessions_dir: Path | str | None = None,
        *,
        trash: bool = False,
        dry_run: bool = False,
        whole: bool = False,
        by: str = "prune",
    ) -> int:
        """Remove ended sessions whose last activity is older than this; returns how many. Never pinned or live ones.

        With `whole`, the parts of a compressed conversation are removed together, and only if all of them qualify.
        """
        ids = self.prunable_sessions(older_than_days, source, whole=whole)
        if whole:
            ids = [part for session_id in ids for part in self.get_compression_chain(session_id)]
        if dry_run:
            return len(ids)
        if trash:
            return sum(self.trash_session(session_id, by=by) for session_id in ids)
        retention.finish_deletions(self._engine, self._transcripts)
        return sum(self.delete_session(session_id, sessions_dir, by=by) for session_id in ids)

    def prunable_sessions(
        self, older_than_days: float = 90, source: str | None = None, *, whole: bool = False
    ) -> list[str]:
        """The ids that prune_sessions would remove; with `whole`, the newest part of each conversation."""
        return self._read(retention.prunable, older_than_days, source, whole)

    def trash_session(self, session_id: str, *, by: str = "", whole: bool = False) -> bool:
        """Put a session in the trash: it is neither listed nor found, its title is free, and it can be restored.

        With `whole`, all parts of a compressed conversation are moved, or none.
        """
        now = time.time()
        what = ("trash", *retention.MOVED)
        return self._change_parts(session_id, what, lambda tx, part: retention.trash(tx, part, by, now), whole=whole)

    def restore_session(self, session_id: str, *, by: str = "", whole: bool = False) -> bool:
        """Take a session (with `whole`, all parts of its conversation) out of the trash, with its title or the next
        number of that title."""
        what = ("restore", *retention.MOVED)
        return self._change_parts(session_id, what, lambda tx, part: retention.restore(tx, part, by), whole=whole)

    def list_trash(self) -> list[TrashedSession]:
        """The sessions in the trash, the newest first."""
        return self._read(retention.trashed)

    def deleted_sessions(self) -> dict[str, bool]:
        """The ids of sessions that were deleted for good and have not come back, each with whether it was shredded."""
        return self._read(retention.deleted)

    def empty_trash(self, older_than_days: float = 7, *, by: str = "empty_trash") -> int:
        """Delete the sessions that have been in the trash longer than this; returns how many.

        Deletions that a crash interrupted are finished, too.
        """
        retention.finish_deletions(self._engine, self._transcripts)
        ids = self._read(retention.trashed_before, older_than_days)
        return sum(self.delete_session(session_id, by=by) for session_id in ids)

    def audit_log(self, limit: int | None = 100) -> list[AuditEntry]:
        """The audit log: sessions trashed, restored, deleted and shredded, and lines of `record_audit`; the newest first."""
        return self._read(retention.audit_log, listing.checked_page(limit, 0)[0])

    def record_audit(self, action: str, session_id: str | None, *, by: str, detail: str = "") -> None:
        """Add a line to the audit log about a change that the store does not record there itself (secrets masked).

        The names of the store's own lines (trash, restore, delete, replace, clear) are refused: InvalidInput.
        """
        checked_text(action, "action"), checked_text(session_id, "session_id")
        if action in retention.OWN_ACTIONS:
            raise InvalidInput(f"{action} is an action that the store records itself")
        self._write(retention.audit, action, session_id, by, self._masked(detail) or "")

    def prune_empty_ghost_sessions(self, sessions_dir: Path | str | None = None) -> int:
        """Remove untitled, ended sessions without messages that are older than a day; returns how many."""
        ids = self._read(retention.ghosts)
        return sum(self.delete_session(session_id, sessions_dir, by="prune_empty_ghost_sessions") for session_id in ids)

    def finalize_orphaned_compression_sessions(self) -> int:
        """End compression children older than a week that never made a model call; returns how many."""
        return len(self._change(END, retention.close_orphaned_compressions))

    def vacuum(self) -> None:
        """Return free space to the file system now, regardless of the amount."""
        self._engine.reclaim(full=True)

    def maybe_auto_prune_and_vacuum(
        self,
        retention_days: float = 90,
        min_interval_hours: float = 24,
        vacuum: bool = True,
        sessions_dir: Path | str | None = None,
    ) -> MaintenanceResult:
        """Prune, at most once per interval over all processes; never raises.

        → {"skipped": bool, "pruned": int, "vacuumed": bool} and, if something went wrong, "error". After sessions were
        pruned, `vacuumed` is true when their space was handled: large amounts are returned to the file system.
        """
        result: MaintenanceResult = {"skipped": False, "pruned": 0, "vacuumed": False}
        try:
            checked_period(retention_days, "retention_days", "days")
            with self._engine.write() as tx:
                result["skipped"] = not retention.begin_auto_prune(tx, min_interval_hours)
            if result["skipped"]:
                return result
            pruned = self.prune_sessions(retention_days, sessions_dir=sessions_dir, whole=True, by="auto_prune")
            result["pruned"] = pruned
            self.end_abandoned_sessions()
            if vacuum and pruned:
                self._engine.reclaim()
                result["vacuumed"] = True
        except Exception as error:  # promised by this call: housekeeping never stops the program from starting
            result["error"] = str(error)
        return result

    # ------------------------------------------------------------------------------------------ meta, leases, handoff

    def get_meta(self, key: str) -> str | None:
        """A value of state_meta."""
        value = self._read(get_meta, key)
        return None if value is None else str(value)

    def set_meta(self, key: str, value: str) -> None:
        """Set a value of state_meta; secrets in it are masked."""
        if not isinstance(key, str):
            raise InvalidInput(f"the key of a value is a text, not {type(key).__name__}")
        self._write(set_meta, key, self._masked(value))

    def acquire_lease(self, name: str, holder: str, ttl: float = 120.0) -> int | None:
        """Take a lease; its fencing token (higher each time), or None while another process holds it."""
        return self._lease(leases.acquire, name, holder, ttl)

    def renew_lease(self, name: str, token: int, ttl: float = 120.0, *, reason: str | None = None) -> bool:
        """Renew a lease (of a session: if given, for another reason); False when this token no longer holds it."""
        return self._lease(leases.renew, name, token, ttl, reason)

    def renew_leases(self, held: Iterable[tuple[str, int, float]]) -> list[bool]:
        """Renew several leases, each (name, token, ttl), in one transaction; the result of renew_lease for each."""
        return self._lease(leases.renew_all, held)

    def release_lease(self, name: str, token: int) -> bool:
        """Release a lease."""
        return self._lease(leases.release, name, token)

    def _lease(self, change: Callable[Concatenate[Tx, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Change leases: a crash may lose that, and no fence stops it."""
        with self._engine.write(exclusive=False, durable=False) as tx:
            return change(tx, *args, **kwargs)

    def lease_holder(self, name: str) -> str | None:
        """The holder name of a lease; None when the lease is free."""
        return self._read(leases.holder_of, name)

    def hold_session(self, session_id: str, holder: str, ttl: float = 120.0) -> int | None:
        """Make a session live: open in a running process, never pruned. The token of the lease "session:<id>", to renew and
        release; None while another process holds it."""
        with self._engine.write(exclusive=False, durable=False) as tx:
            sessions.require(tx, session_id)
            return leases.acquire(tx, leases.session_lease(session_id), holder, ttl, leases.OPEN)

    def take_turn(self, session_id: str, holder: str, ttl: float = 120.0, *, reason: str = leases.TURN) -> int:
        """Take the lease "session:<id>" to answer in a session (or to compress it: `reason`), also where another process
        merely has it open; its token.

        SessionBusy while another process answers there or compresses it, or while it is being handed over to another platform
        than the holder's (its name ends with `:<platform>`).
        """
        with self._engine.write(exclusive=False, durable=False) as tx:
            return leases.take_turn(tx, session_id, holder, ttl, reason)

    def turn_is_free(self, session_id: str, holder: str) -> int:
        """The token of the session's last lease, if take_turn would succeed now; else its SessionBusy."""
        return self._read(leases.require_free, session_id, holder)

    def is_live(self, session_id: str) -> bool:
        """Whether a running process holds the session."""
        return self._read(leases.is_live, session_id)

    def session_holder(self, session_id: str) -> str | None:
        """The holder name of the session's lease; None when it is not live."""
        return self.lease_holder(leases.session_lease(session_id))

    def turn_holder(self, session_id: str) -> str | None:
        """The holder name of the session's lease, if that process does more than to have it open; else None."""
        held = self._read(leases.held, leases.session_lease(session_id))
        return None if held is None or held[1] == leases.OPEN else held[0]

    def end_abandoned_sessions(self, after_hours: float = 24) -> int:
        """End sessions whose holder's lease expired longer ago than this, with reason "abandoned"; returns how many."""
        return len(self._change(END, lambda tx: leases.end_abandoned(tx, after_hours)))

    def request_handoff(self, session_id: str, platform: str) -> bool:
        """Request a handoff of a session; False while one is in progress. A request not claimed within two minutes is over."""
        return self._handoff(session_id, lambda tx: leases.request_handoff(tx, session_id, platform))

    def get_handoff_state(self, session_id: str) -> HandoffState | None:
        """{"state", "platform", "error"}, each None when no handoff was ever requested; None for an unknown session."""
        return self._read(leases.handoff_state, session_id)

    def list_pending_handoffs(self) -> list[PendingHandoff]:
        """Sessions with a pending handoff, the oldest request first."""
        return self._read(leases.pending_handoffs)

    def claim_handoff(self, session_id: str, *, lease: float = leases.HANDOFF_SECONDS) -> bool:
        """Claim a pending handoff; one caller wins. The claim expires after `lease` seconds without a heartbeat."""
        return self.take_handoff(session_id, lease=lease) is not None

    def take_handoff(self, session_id: str, *, lease: float = leases.HANDOFF_SECONDS) -> int | None:
        """Claim a pending handoff as claim_handoff does; returns the token of the claim, or None.

        `fenced("job:handoff:<id>", token)` stops a suspended process from renewing, completing or failing a handoff that
        another process has claimed since.
        """
        return self._handoff(session_id, lambda tx: leases.claim_handoff(tx, session_id, lease))

    def heartbeat_handoff(self, session_id: str, *, lease: float = leases.HANDOFF_SECONDS) -> bool:
        """Renew a claim."""
        return self._write(leases.renew, leases.handoff_lease(session_id), None, lease)

    def withdraw_handoff(self, session_id: str, error: str) -> bool:
        """Cancel a request that is not claimed; False when it is claimed."""
        return self._handoff(
            session_id, lambda tx: leases.finish_handoff(tx, session_id, "failed", self._masked(error), claimed=False)
        )

    def handoff_seconds_left(self, session_id: str) -> float | None:
        """Seconds until the claim on a handoff expires (negative: it has expired); None when it is not claimed."""
        return self._read(leases.handoff_seconds_left, session_id)

    def complete_handoff(self, session_id: str) -> bool:
        """Mark a handoff as completed."""
        return self._handoff(session_id, lambda tx: leases.finish_handoff(tx, session_id, "completed"))

    def fail_handoff(self, session_id: str, error: str) -> bool:
        """Mark a handoff as failed, with the reason; it can be requested again."""
        return self._handoff(
            session_id, lambda tx: leases.finish_handoff(tx, session_id, "failed", self._masked(error))
        )

    def _handoff(self, session_id: str, step: Callable[[Tx], R]) -> R:
        return self._change(_HANDOFF, step, session_id, exclusive=False)
