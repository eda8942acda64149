"""Real mail servers: Postfix takes mails in and hands them to Dovecot, which keeps them and serves IMAP.

Both run from a folder of their own on free ports, beside whatever the system may run, until the process ends. Any
address of lab.test exists (except those that begin with "gone"), with one password. SMTP and IMAP are reached through
`Line`s, which can be cut, and where SMTP can be made to refuse.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import imaplib
import os
import shutil
import signal
import smtplib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from tests.support.environments import missing, program
from tests.support.labs.base import until
from tests.support.ports import free_port

DOMAIN = "lab.test"
PASSWORD = "correct-horse-battery"
SERVER = f"mx.{DOMAIN}"  # what Postfix calls itself

_DOVECOT = """
base_dir = {folder}/run
state_dir = {folder}/state
log_path = {folder}/dovecot.log
protocols = imap lmtp
listen = 127.0.0.1
ssl = yes
ssl_cert = <{folder}/cert.pem
ssl_key = <{folder}/key.pem
disable_plaintext_auth = no
auth_mechanisms = plain login
auth_failure_delay = 0
mail_location = maildir:{folder}/mail/%u
mail_uid = nobody
mail_gid = nogroup
first_valid_gid = 1
mail_max_userip_connections = 1000
auth_cache_size = 0
login_greeting = ready
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={folder}/mail/%u allow_all_users=yes
}}
namespace inbox {{
  inbox = yes
  mailbox Sent {{
    auto = create
    special_use = \\Sent
  }}
}}
service imap-login {{
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = {imaps}
  }}
  service_count = 0
  process_min_avail = 1
}}
service imap {{
  service_count = 1
}}
service anvil {{
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service lmtp {{
  inet_listener lmtp {{
    address = 127.0.0.1
    port = {lmtp}
  }}
}}
service auth {{
  unix_listener {folder}/queue/private/auth {{
    mode = 0666
  }}
}}
"""

_POSTFIX = """
compatibility_level = 3.6
queue_directory = {folder}/queue
data_directory = {folder}/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
myhostname = mx.{domain}
mydestination =
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
maillog_file = {folder}/postfix.log
maillog_file_prefixes = {folder}
virtual_mailbox_domains = {domain}
virtual_mailbox_maps = static:all
virtual_transport = lmtp:inet:127.0.0.1:{lmtp}
enable_long_queue_ids = yes
message_size_limit = 50000000
mailbox_size_limit = 0
virtual_mailbox_limit = 0
smtpd_sasl_auth_enable = yes
smtpd_sasl_type = dovecot
smtpd_sasl_path = private/auth
smtpd_tls_cert_file = {folder}/cert.pem
smtpd_tls_key_file = {folder}/key.pem
smtpd_tls_security_level = may
smtpd_sender_restrictions = check_sasl_access regexp:{folder}/logins
smtpd_recipient_restrictions = check_recipient_access regexp:{folder}/gone, permit_mynetworks, reject
smtpd_error_sleep_time = 0
smtpd_client_connection_rate_limit = 0
smtpd_client_connection_count_limit = 0
default_transport = bouncing
queue_run_delay = 1s
minimal_backoff_time = 1s
maximal_backoff_time = 1s
transport_retry_time = 1s
in_flow_delay = 0
biff = no
alias_maps =
local_recipient_maps =
"""

_MASTER = """
127.0.0.1:{smtp} inet n - n - - smtpd
127.0.0.1:{inbound} inet n - n - - smtpd
  -o smtpd_sasl_auth_enable=no
127.0.0.1:{smtps} inet n - n - - smtpd
  -o smtpd_tls_wrappermode=yes
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
proxywrite unix - - n - 1 proxymap
error unix - - n - - error
retry unix - - n - - error
bouncing unix - n n - - pipe
  user=nobody argv=/bin/sh -c {{exit 69}}
lmtp unix - - n - - lmtp
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
"""


class Line:
    """A way to a server that can be cut, and on which SMTP's MAIL can be refused; any thread may use it."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._refusals: list[bytes] = []
        self.hidden = b""  # what the server seems never to say
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, args=(started,), name="line", daemon=True)
        self._thread.start()
        started.wait(10)

    def refuse(self, answer: str, times: int = 1) -> None:
        """The next mails are answered with this."""
        self._refusals.extend([answer.encode() + b"\r\n"] * times)

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._open) // 2

    def drop(self) -> None:
        """Cut every connection."""
        done = threading.Event()

        def cut() -> None:
            for writer in list(self._open):
                writer.transport.abort()
            done.set()

        self._loop.call_soon_threadsafe(cut)
        done.wait(10)

    def reset(self) -> None:
        """Refuse and hide nothing any more."""
        self._refusals.clear()
        self.hidden = b""

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, upstream}
        back = asyncio.create_task(self._copy(answers, writer))
        try:
            while data := await reader.read(1 << 16):
                if data[:5].upper() == b"MAIL " and self._refusals:
                    writer.write(self._refusals.pop(0))
                else:
                    upstream.write(data)
                    await upstream.drain()
        except OSError:
            pass
        finally:
            back.cancel()
            for end in (writer, upstream):
                self._open.discard(end)
                end.close()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                target.write(data.replace(self.hidden, b"") if self.hidden else data)
                await target.drain()
        except OSError:
            pass
        target.close()


class MailServer:
    """Postfix and Dovecot, until the process ends."""

    _only: MailServer | None = None

    @classmethod
    def running(cls) -> MailServer:
        """The servers of this process; skips the test where they can't be had."""
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def __init__(self) -> None:
        self._dovecot_program = program("dovecot", "dovecot-imapd dovecot-lmtpd")
        self._postfix_program = program("postfix", "postfix")
        if not Path("/usr/lib/dovecot/lmtp").exists():
            missing("needs Dovecot's LMTP (package dovecot-lmtpd)")
        if os.geteuid() != 0:
            missing("Postfix starts as root only")
        self.folder = Path(mkdtemp(prefix="hermes-mail-", dir="/tmp"))
        self.folder.chmod(0o755)  # the servers' own users come by here
        self._processes: list[subprocess.Popen[bytes]] = []
        self._owner = os.getpid()
        atexit.register(self.close)
        self.imap, self.imaps, self.smtp, self.smtps, self.inbound, self.lmtp = (free_port() for _ in range(6))
        self._write()
        self.start_dovecot()
        subprocess.run(
            [self._postfix_program, "-c", str(self.folder / "postfix"), "check"], check=True
        )  # makes its folders
        self._start("/usr/lib/postfix/sbin/master", "-c", str(self.folder / "postfix"), "-d")
        for port in (self.imap, self.imaps, self.lmtp, self.smtp, self.smtps, self.inbound):
            until(lambda port=port: _listens(port), f"no mail server on port {port}:\n{self.logs()}")
        self.imap_line, self.smtp_line = Line(self.imap), Line(self.smtp)

    @property
    def certificate(self) -> Path:
        """The certificate that signs the servers' TLS."""
        return self.folder / "cert.pem"

    def deliver(self, recipient: str, mail: bytes, sender: str = f"somebody@{DOMAIN}") -> None:
        """Put a mail into a mailbox, now and in order: past Postfix, which may deliver side by side."""
        with smtplib.LMTP("127.0.0.1", self.lmtp, local_hostname="lab") as client:
            client.sendmail(sender, [recipient], mail)

    def submit(self, sender: str, recipient: str, mail: bytes) -> None:
        """Send a mail as it comes from other servers, through Postfix."""
        with smtplib.SMTP("127.0.0.1", self.inbound, local_hostname="lab") as client:
            client.sendmail(sender, [recipient], mail)

    def write(self, account: str, recipient: str, mail: bytes) -> None:
        """Send a mail as a person's program does: logged in, through Postfix, which notes who that is."""
        with self.logged_in(account) as client:
            client.sendmail(account, [recipient], mail)

    @contextmanager
    def logged_in(self, account: str) -> Iterator[smtplib.SMTP]:
        """A connection on which a person has logged in; Postfix asks Dovecot for that, and accepts none without it."""
        with smtplib.SMTP("127.0.0.1", self.smtp, local_hostname="lab") as client:
            client.login(account, PASSWORD)
            yield client

    def mails(self, address: str, folder: str = "") -> list[bytes]:
        """The mails in a mailbox, in the order in which Postfix has accepted them."""
        root = self.folder / "mail" / address / (f".{folder}" if folder else "")
        found = [path.read_bytes() for part in ("new", "cur") for path in (root / part).glob("*") if path.is_file()]
        return sorted(found, key=_queue_id)

    def put_away(self, address: str, mail: bytes, days_ago: float) -> None:
        """A mail that has been in a mailbox for days, unread."""
        with imaplib.IMAP4("127.0.0.1", self.imap) as client:
            client.login(address, PASSWORD)
            client.append("INBOX", None, imaplib.Time2Internaldate(time.time() - days_ago * 86400), mail)

    def empty(self, address: str) -> None:
        """Throw all mails of somebody away."""
        words = ["doveadm", "-c", str(self.folder / "dovecot.conf"), "expunge", "-u", address, "mailbox", "*", "all"]
        subprocess.run(words, check=False, capture_output=True, timeout=20)

    def start_dovecot(self) -> None:
        """Start Dovecot (again)."""
        self._dovecot = self._start(self._dovecot_program, "-F", "-c", str(self.folder / "dovecot.conf"))
        until(lambda: _listens(self.imap) and _listens(self.lmtp), f"Dovecot does not start:\n{self.logs()}")

    def stop_dovecot(self) -> None:
        """End Dovecot and every connection to it."""
        self._dovecot.terminate()
        self._dovecot.wait(10)
        self.imap_line.drop()  # its idling processes would take ten seconds to notice
        until(lambda: not _listens(self.imap), "Dovecot still listens")

    def logs(self) -> str:
        """The ends of the servers' logs."""
        found = [self.folder / name for name in ("dovecot.log", "postfix.log", "output")]
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-3000:]}" for path in found if path.exists())

    def close(self) -> None:
        """End the servers; only the process that started them does."""
        if os.getpid() != self._owner:
            return
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self) -> None:
        folder = self.folder
        for name in ("run", "state", "postfix", "queue", "queue/private", "data", "mail"):
            (folder / name).mkdir()
        shutil.chown(folder / "data", "postfix")
        shutil.chown(folder / "queue/private", "postfix")
        shutil.chown(folder / "mail", "nobody", "nogroup")
        subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
        words = [program("openssl", "openssl"), "req", "-x509", *curve, *files, *subject]
        subprocess.run(words, check=True, capture_output=True)
        values = {**vars(self), "folder": folder, "domain": DOMAIN, "password": PASSWORD}
        (folder / "dovecot.conf").write_text(_DOVECOT.format(**values))
        (folder / "postfix/main.cf").write_text(_POSTFIX.format(**values))
        (folder / "postfix/master.cf").write_text(_MASTER.format(**values))
        # As servers note who has logged in: above everything that came with the mail.
        (folder / "logins").write_text(f"/^(.+)$/ PREPEND Authentication-Results: {SERVER}; auth=pass smtp.auth=$1\n")
        (folder / "gone").write_text("/^gone/ 550 5.1.1 no such person\n")

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "output", "ab") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=_end_with_parent
            )
        self._processes.append(process)
        return process


def _queue_id(mail: bytes) -> bytes:
    """Postfix' number of a mail, which grows with time."""
    _, found, rest = mail.partition(b"(Postfix) with ")
    return rest.partition(b" id ")[2].split()[0] if found else b""


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # a killed test run leaves no servers behind
