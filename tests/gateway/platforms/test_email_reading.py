"""Reading mail: the text of common mail programs, broken mails, forged ones, and those of machines."""

from __future__ import annotations

from email.message import EmailMessage
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.gateway.platforms.email.authentication import ALWAYS, NEVER, WHEN_CHECKED, distrust, misuse, wanted_proof
from hermes.gateway.platforms.email.incoming import (
    EVIDENCE,
    LONGEST,
    Mail,
    file_in,
    new_text,
    quoted,
    read_mail,
    text_of_html,
    unflowed,
    without_reply_marks,
)
from hermes.gateway.platforms.email.outgoing import as_html, header_text, message_id_for, subject_from, written

pytestmark = pytest.mark.mechanism

US = "hermes@lab.test"


def read(*lines: str, body: str = "hello", sender: str = "Alice <alice@example.org>") -> Mail:
    head = [f"From: {sender}", "Message-ID: <1@example.org>", *lines]
    return read_mail(("\r\n".join([*head, "", body])).encode("utf-8", "surrogateescape"), US)


# ------------------------------------------------------------------------------------------ the new words

REPLIES = {
    "Gmail": "Yes, please.\n\nOn Mon, 3 Mar 2025 at 10:12, Hermes <hermes@lab.test> wrote:\n\n> Shall I?\n> Tell me.\n",
    "Gmail, wrapped": "Yes, please.\n\nOn Mon, 3 Mar 2025 at 10:12, A very long name indeed\n<hermes@lab.test> wrote:\n\n> Shall I?\n",
    "Apple Mail": "Yes, please.\n\n> On 3 Mar 2025, at 10:12, Hermes <hermes@lab.test> wrote:\n> \n> Shall I?\n",
    "Thunderbird": "Yes, please.\n\nAm 03.03.25 um 10:12 schrieb Hermes:\n> Shall I?\n>\n> Tell me.\n",
    "Outlook": "Yes, please.\n\n________________________________\nFrom: Hermes <hermes@lab.test>\nSent: Monday, March 3, 2025 10:12\nTo: Alice\nSubject: Re: trip\n\nShall I?\n",
    "Outlook, German": "Yes, please.\n\nVon: Hermes <hermes@lab.test>\nGesendet: Montag, 3. März 2025 10:12\nAn: Alice\nBetreff: AW: trip\n\nShall I?\n",
    "Outlook, old": "Yes, please.\n\n-----Original Message-----\nFrom: Hermes\nShall I?\n",
    "French": "Yes, please.\n\nLe lun. 3 mars 2025 à 10:12, Hermes <hermes@lab.test> a écrit :\n\n> Shall I?\n",
    "Spanish": "Yes, please.\n\nEl lun, 3 mar 2025 a las 10:12, Hermes (<hermes@lab.test>) escribió:\n\n> Shall I?\n",
    "a phone without marks": "Yes, please.\n\nOn 3 Mar 2025 10:12, Hermes <hermes@lab.test> wrote:\n\nShall I?\nTell me.\n",
    "a phone's signature": "Yes, please.\n\nSent from my iPhone\n\n> On 3 Mar 2025, at 10:12, Hermes wrote:\n> Shall I?\n",
    "a signature": "Yes, please.\n\n-- \nAlice Miller\nHead of Things\n",
    "signature and quote": "Yes, please.\n-- \nAlice\n\nOn Mon, 3 Mar 2025, Hermes wrote:\n> Shall I?\n",
    "answer below": "On Mon, 3 Mar 2025 at 10:12, Hermes <h@lab.test> wrote:\n> Shall I?\n\nYes, please.\n",
    "Chinese": "Yes, please.\n\n在 2025年3月3日 星期一,Hermes <hermes@lab.test> 写道:\n> Shall I?\n",
}


@pytest.mark.parametrize("program", REPLIES)
def test_only_the_new_words_of_a_reply_count(program: str) -> None:
    assert new_text(REPLIES[program], reply=True) == "Yes, please."
    assert new_text(REPLIES[program].replace("\n", "\r\n"), reply=True) == "Yes, please."


@pytest.mark.parametrize("program", [name for name in REPLIES if name != "a signature"])
def test_the_mail_a_reply_carries_along_is_its_quote(program: str) -> None:
    for text in (REPLIES[program], REPLIES[program].replace("\n", "\r\n")):
        assert "Shall I?" in quoted(text)
        assert "Yes, please." not in quoted(text)
        assert ">" not in quoted(text).replace("@lab.test>", "")


def test_without_a_mail_below_there_is_no_quote() -> None:
    assert quoted(REPLIES["a signature"]) == ""
    assert quoted("> First?\nYes.\n\n> Second?\nNo.") == ""  # between the answers: they are part of what is said


def test_answers_between_quoted_questions_keep_them() -> None:
    text = "> First?\nYes.\n\n> Second?\nNo."
    assert new_text(text, reply=True) == text


def test_a_mail_that_answers_nothing_keeps_what_looks_like_a_quote() -> None:
    text = "I like this:\n\n> To be or not to be"
    assert new_text(text, reply=False) == text


def test_a_forwarded_mail_is_kept_whole() -> None:
    body = "What do you think?\n\n-----Original Message-----\nFrom: Bob\nSent: today\n\nBuy now!"
    mail = read("Subject: Fwd: offer", "In-Reply-To: <0@example.org>", body=body)
    assert mail.text == body


def test_ordinary_sentences_are_not_taken_for_quotes() -> None:
    text = "On the table I found what he wrote:\na poem.\n\nFrom: is a word, too.\nMore to come."
    assert new_text(text, reply=True) == text


def test_an_empty_reply_above_a_quote_says_nothing() -> None:
    assert new_text("\nOn Mon, 3 Mar 2025 at 10:12, Hermes <h@lab.test> wrote:\n> Shall I?\n", reply=True) == ""


@given(st.text())
def test_cutting_never_fails_and_only_takes_away(text: str) -> None:
    kept = new_text(text, reply=True)
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    assert all(line in lines for line in kept.split("\n") if line)


def test_flowed_lines_become_one_again() -> None:
    assert unflowed("a long \nline\nnext\n-- \nAlice") == "a long line\nnext\n-- \nAlice"
    assert unflowed("日本 \n語", without_space=True) == "日本語"
    mail = read("Content-Type: text/plain; charset=utf-8; format=flowed", body="one \r\ntwo\r\n")
    assert mail.text == "one two"


@pytest.mark.parametrize("subject", ["Re: trip", "RE: trip", "AW: Re: trip", "Re[2]: trip", "SV: trip", "trip"])
def test_a_subject_loses_its_reply_marks(subject: str) -> None:
    assert without_reply_marks(subject) == "trip"


# ------------------------------------------------------------------------------------------ mails in HTML only


def test_html_becomes_text() -> None:
    html = (
        "<html><head><style>p{}</style><title>x</title></head><body><p>Dear <b>agent</b>,</p><ul><li>one<li>two</ul>"
        '<p>see <a href="https://example.org/a">this page</a></p><div style="display: none">buy now</div>'
        "<pre>a\n  b</pre><script>alert(1)</script>&lt;done&gt; caf&eacute;</body></html>"
    )
    assert text_of_html(html) == (
        "Dear agent,\n\n- one\n- two\n\nsee this page (https://example.org/a)\n\na\n  b\n\n<done> café"
    )


def test_the_quote_in_an_html_reply_is_cut() -> None:
    body = (
        '<div dir="ltr">Yes, please.</div><br><div class="gmail_quote"><div dir="ltr" class="gmail_attr">On Mon, Mar 3,'
        ' 2025 at 10:12 Hermes &lt;<a href="mailto:h@lab.test">h@lab.test</a>&gt; wrote:<br></div><blockquote'
        ' class="gmail_quote"><div>Shall I?</div></blockquote></div>'
    )
    assert read("In-Reply-To: <0@lab.test>", "Content-Type: text/html; charset=utf-8", body=body).text == "Yes, please."


@given(st.text(alphabet="<>/=\"'abdivpre blockquote!-[]&;# \n", max_size=300))
def test_any_html_can_be_read(html: str) -> None:
    assert isinstance(text_of_html(html), str)


# ------------------------------------------------------------------------------------------ broken and hostile mails


@given(st.binary(max_size=600))
def test_any_bytes_can_be_read(raw: bytes) -> None:
    assert isinstance(read_mail(raw, US).text, str)


_PIECES = st.sampled_from(
    ["From: a@b.org", "From: =?utf-8?q?=FF?= <a@b.org>", "Subject: =?bogus?b?@@@?=", "Subject: =?utf-8?b?w7x?= x",
     "Content-Type: multipart/mixed; boundary=x", "Content-Type: multipart/mixed", "Content-Type: text/html; charset=idna",
     "Content-Type: text/plain; charset=\"iso-8859-8-i\"", "Content-Type: message/rfc822", "Content-Type: ;;;",
     "Content-Transfer-Encoding: base64", "Content-Transfer-Encoding: uuencode", "--x", "--x--", "", "=?=?=", "AAA=",
     "Content-Disposition: attachment; filename*0*=utf-8''%FF; filename*2=x", "Date: Mon, 99 Foo 99999 99:99",
     "References: <<<>>> <a@b> <", "begin 644 x", "\x00\x01", "Message-ID: ", "Ünïcödé: ü"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=25))
def test_any_heap_of_mail_pieces_can_be_read(pieces: list[str]) -> None:
    raw = "\r\n".join(pieces).encode("utf-8")
    mail = read_mail(raw, US)
    for file in mail.files:
        assert isinstance(file_in(raw, file.part), bytes)


def test_parts_nested_a_thousand_deep_do_not_break_it() -> None:
    raw = b"From: a@b.org\r\nMessage-ID: <1@b>\r\n"
    for number in range(3000):
        raw += b'Content-Type: multipart/mixed; boundary="%d"\r\n\r\n--%d\r\n' % (number, number)
    mail = read_mail(raw, US)
    assert (mail.address, mail.files) == ("a@b.org", ())
    assert "nested too deep" in mail.text  # it is answered, and the model knows why there is nothing to read


@pytest.mark.parametrize(
    "charset, data, text",
    [
        ("iso-8859-1", "Grüße".encode("latin-1"), "Grüße"),
        ("gb2312", "你好镕".encode("gb18030"), "你好镕"),
        ("koi8-r", "Привет".encode("koi8-r"), "Привет"),
        ("shift_jis", "こんにちは".encode("shift_jis"), "こんにちは"),
        ("us-ascii", "Grüße".encode(), "Grüße"),
        ("no-such-charset", "Grüße".encode(), "Grüße"),
        ("utf-8", "Grüße".encode("latin-1"), "Grüße"),
        ("utf-16", "hi".encode("utf-16"), "hi"),
    ],
)  # fmt: skip
def test_text_is_read_in_whatever_charset_it_really_is(charset: str, data: bytes, text: str) -> None:
    raw = f"From: a@b.org\r\nContent-Type: text/plain; charset={charset}\r\n\r\n".encode() + data
    assert read_mail(raw, US).text == text


def test_names_and_subjects_are_decoded() -> None:
    mail = read(
        "Subject: =?utf-8?b?R3LDvMOfZQ==?= =?iso-8859-1?q?=FC?=", sender="=?utf-8?q?J=C3=BCrgen?= <J@Example.ORG>"
    )
    assert (mail.name, mail.address, mail.subject) == ("Jürgen", "j@example.org", "Grüßeü")


def test_a_mail_without_an_id_has_the_same_each_time_it_comes() -> None:
    raw = b"From: a@b.org\r\nDate: Mon, 3 Mar 2025 10:00:00 +0000\r\n\r\nhello"
    first, again = read_mail(raw, US), read_mail(b"Received: by another way\r\n" + raw, US)
    assert first.message_id == again.message_id
    assert first.message_id != read_mail(raw + b"!", US).message_id


def test_the_thread_is_that_of_the_references() -> None:
    assert read().references == ()
    assert read("In-Reply-To: <0@x>").references == ("<0@x>",)
    assert read("References: <a@x>\r\n <b@x>", "In-Reply-To: <b@x>").references == ("<a@x>", "<b@x>")
    assert read("References: nonsense", "In-Reply-To: your mail of Monday <c@x>").references == ("<c@x>",)


def test_a_very_long_text_is_cut_with_a_word_about_it() -> None:
    mail = read(body="x" * (LONGEST + 1234))
    assert mail.text.startswith("x" * LONGEST) and "1,234 characters" in mail.text


def test_of_a_huge_mail_the_beginning_is_read() -> None:
    raw = (
        b"From: a@b.org\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\nContent-Type: text/plain\r\n\r\n"
        b"look at this\r\n--x\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\nAAAA"
    )
    mail = read_mail(raw, US, size=90_000_000)
    assert mail.text.startswith("look at this") and "90 MB" in mail.text and mail.files == ()


def test_files_are_found_and_logos_are_not() -> None:
    mail = EmailMessage()
    mail["From"], mail["Message-ID"] = "a@b.org", "<1@b>"
    mail.set_content("see below")
    mail.add_alternative('<p>see below <img src="cid:logo"></p>', subtype="html")
    mail.get_payload()[1].add_related(b"logo", "image", "png", cid="<logo>")
    mail.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="../../etc/Rechnung März.pdf")
    mail.add_attachment("a,b\n", subtype="csv", filename="table.csv")
    inner = EmailMessage()
    inner.set_content("inner")
    mail.add_attachment(inner)
    raw = mail.as_bytes()
    found = read_mail(raw, US)
    assert found.text == "see below"
    assert [(file.name, file.mime) for file in found.files] == [
        ("Rechnung März.pdf", "application/pdf"),
        ("table.csv", "text/csv"),
        ("mail.eml", "message/rfc822"),
    ]
    assert file_in(raw, found.files[0].part) == b"%PDF-1.4"
    assert file_in(raw, found.files[1].part) == b"a,b\n"
    assert b"inner" in (file_in(raw, found.files[2].part) or b"")
    assert file_in(raw, 99) is None


# ------------------------------------------------------------------------------------------ machines and forgeries


@pytest.mark.parametrize(
    "header",
    [
        "Auto-Submitted: auto-replied",
        "Auto-Submitted: auto-generated; owner=x",
        "Precedence: bulk",
        "Precedence: junk",
        "Precedence: list",
        "List-Id: <announce.example.org>",
        "X-Auto-Response-Suppress: All",
        "Return-Path: <>",
        "X-Spam-Flag: YES",
        "X-Autoreply: yes",
    ],
)
def test_what_machines_send_is_not_for_us(header: str) -> None:
    assert read(header).unwanted
    assert read().unwanted is None


@pytest.mark.parametrize(
    "sender",
    [
        US,
        f"Somebody <{US.upper()}>",
        "MAILER-DAEMON@example.org",
        "postmaster@example.org",
        "no-reply@example.org",
        "noreply+123@example.org",
        "do_not_reply@example.org",
        "bounces+1@example.org",
        "alice@example.org, bob@example.org",
        "nobody at all",
        "",
    ],
)
def test_who_takes_no_replies_gets_none(sender: str) -> None:
    assert read(sender=sender).unwanted


def test_people_whose_names_sound_like_machines_are_people() -> None:
    for address in ("nora@example.org", "bouncer@example.org", "post@example.org", "listener@example.org"):
        assert read(sender=address).unwanted is None
    assert read("Auto-Submitted: no").unwanted is None


def test_two_senders_are_nobody() -> None:
    assert read("From: bob@example.org").address == ""


def test_an_encoded_name_can_not_pretend_to_be_an_address() -> None:
    mail = read(sender="=?utf-8?q?alice=40good=2Eorg_=3Calice=40good=2Eorg=3E?= <mallory@bad.org>")
    assert mail.address == "mallory@bad.org"


RECEIVED = (
    "received",
    "from x (x [192.0.2.1]) by mx.lab.test (Postfix) with ESMTPS id 1; Mon, 3 Mar 2025 10:12:00 +0000",
)
HANDED_OVER = ("received", "from mx.lab.test by imap.lab.test (Dovecot) with LMTP id 2 (envelope-from <a@b>)")
PASSES = [
    "mx.lab.test; dmarc=pass header.from=example.org",
    "mx.lab.test; dkim=pass (2048-bit key) header.d=example.org header.s=a",
    "mx.lab.test; dkim=pass header.i=@example.org; spf=fail smtp.mailfrom=x.org",
    "mx.lab.test;\tspf=pass smtp.mailfrom=alice@example.org",
    "mx.lab.test; spf=pass smtp.mailfrom=bounces@sender.example; dkim = pass header.d = example.org",
    "mx.lab.test 1; auth=pass smtp.auth=alice@example.org",
    '"MX.lab.test"; dkim=pass header.d=example.org',
]
FAILS = [
    "mx.lab.test; none",
    "mx.lab.test; dmarc=fail header.from=example.org; spf=pass smtp.mailfrom=bad.org",
    "mx.lab.test; dmarc=fail header.from=example.org; dkim=pass header.d=example.org",
    "mx.lab.test; dkim=pass header.d=bad.org",
    "mx.lab.test; dkim=pass header.d=notexample.org",
    "mx.lab.test; dkim=pass header.d=org",
    "mx.lab.test; dkim=fail (dkim=pass header.d=example.org) header.d=example.org",
    'mx.lab.test; dkim=fail reason="; dkim=pass header.d=example.org" header.d=bad.org',
    'mx.lab.test; dkim=fail reason="\\"; dkim=pass header.d=example.org" header.d=bad.org',
    'mx.lab.test; spf=pass smtp.mailfrom="example.org"@bad.org',
    'mx.lab.test; spf=pass smtp.mailfrom="x; dkim=pass header.d=example.org "@bad.org',
    'mx.lab.test; spf=pass smtp.mailfrom="alice@example.org"',
    "mx.lab.test; spf=softfail smtp.mailfrom=example.org",
    "mx.lab.test; auth=pass smtp.auth=bob@example.org; dkim=pass header.d=example.org",
    "mx.lab.test; auth=pass smtp.auth=bob; dkim=pass header.d=example.org",
    "mx.lab.test; spf=pass smtp.mailfrom=bob@example.org; dmarc=pass header.from=example.org",
    "mx.evil.test; dkim=pass header.d=example.org",
    "mx.lab.test.evil.test; dkim=pass header.d=example.org",
]


def doubts(*headers: tuple[str, str] | str, sender: str = "alice@example.org", **more: Any) -> str | None:
    """Why a mail with these headers, topmost first, is not proven."""
    trail = [("authentication-results", one) if isinstance(one, str) else one for one in headers]
    return distrust(trail, sender, **{"server": "mx.lab.test", "our_domain": "lab.test", **more})


@pytest.mark.parametrize("header", PASSES)
def test_a_sender_the_server_has_confirmed_is_believed(header: str) -> None:
    assert doubts(header, RECEIVED) is None
    assert doubts(HANDED_OVER, header, RECEIVED) is None


@pytest.mark.parametrize("header", FAILS)
def test_a_sender_the_server_could_not_confirm_is_not_believed(header: str) -> None:
    assert doubts(header, RECEIVED)


@pytest.mark.parametrize("header", PASSES)
def test_only_what_stands_above_our_own_received_line_counts(header: str) -> None:
    tricks = ("from mx.lab.test (evil [192.0.2.9]) by mx.lab.test with ESMTP", "from with (LMTP) by mx.lab.test with SMTP",
              "from lmtp (by imap.lab.test with LMTP [192.0.2.9]) by mx.lab.test with ESMTP id LMTP")  # fmt: skip
    for received in (RECEIVED[1], *tricks):
        assert doubts(("received", received), header)
        assert doubts(("received", received), HANDED_OVER, header)
        assert doubts(HANDED_OVER, ("received", received), HANDED_OVER, header)
    assert doubts("mx.lab.test; dkim=fail header.d=example.org", RECEIVED, header)
    assert doubts(RECEIVED, header, below=True) is None
    assert doubts(header, RECEIVED, server=None)


def test_in_our_own_domain_only_a_login_as_that_address_is_proof() -> None:
    for proof in (
        "dkim=pass header.d=lab.test",
        "spf=pass smtp.mailfrom=alice@lab.test",
        "dmarc=pass header.from=lab.test",
    ):
        assert doubts(f"mx.lab.test; {proof}", RECEIVED, sender="alice@lab.test")
    for login in ("alice@lab.test", "Alice@LAB.test", "alice"):
        assert doubts(f"mx.lab.test; auth=pass smtp.auth={login}", RECEIVED, sender="alice@lab.test") is None
    assert doubts("mx.lab.test; auth=pass smtp.auth=bob", RECEIVED, sender="alice@lab.test")


def test_gmail_writes_below_its_received_line_and_guards_its_own_addresses() -> None:
    received = ("received", "from mail-x.google.com (x [192.0.2.1]) by mx.google.com with SMTPS id a")
    result = "mx.google.com; dkim=pass header.i=@gmail.com; spf=pass smtp.mailfrom=alice@gmail.com; dmarc=pass header.from=gmail.com"
    own = {"server": "mx.google.com", "our_domain": "gmail.com"}
    assert doubts(received, result, sender="alice@gmail.com", **own) is None
    assert doubts(received, result, sender="bob@gmail.com", **own)


def test_the_words_of_the_setting() -> None:
    assert (wanted_proof(True), wanted_proof("no"), wanted_proof("when-checked")) == (ALWAYS, NEVER, WHEN_CHECKED)
    with pytest.raises(ValueError, match="sometimes"):
        wanted_proof("sometimes")


@given(st.text(alphabet='abc=;."() \\@pass dkim header.d', max_size=200))
def test_any_results_header_can_be_read(header: str) -> None:
    assert isinstance(doubts(header, ("received", header), header), str | None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(EVIDENCE)),
            st.one_of(st.text(max_size=60), st.text(alphabet='ab@.,:;<>()"\\ +=hl1970', max_size=60)),
        )
    ),
    st.sampled_from(["mx.lab.test; dkim=pass header.d=example.org", "mx.lab.test; spf=pass smtp.mailfrom=example.org"]),
)
def test_any_headers_can_be_judged(headers: list[tuple[str, str]], proof: str) -> None:
    trail = [("authentication-results", proof), *headers]
    given = {"server": "mx.lab.test", "our_addresses": {US}, "our_domain": "lab.test", "now": 0.0, "days": 14}
    assert misuse(trail, "alice@example.org", **given)


_ANY = st.text(alphabet='ab=;."()\\ @<>', max_size=30)


@given(_ANY, _ANY)
def test_no_envelope_and_no_reason_that_a_sender_chooses_is_proof(mailbox: str, reason: str) -> None:
    def quoted(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    for chosen in (mailbox, f"{mailbox}; dkim=pass header.d=example.org {reason}", f"example.org{mailbox}"):
        header = (
            f"mx.lab.test; spf=pass smtp.mailfrom={quoted(chosen)}@bad.org; dkim=fail reason={quoted(chosen + reason)}"
        )
        assert doubts(header, RECEIVED)


# ------------------------------------------------------------------------------------------ the mails we write


class Balance(HTMLParser):
    """Notes every tag, and whether what is opened is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("br", "hr"):
            return
        assert self.open.pop() == tag


ALLOWED = set(
    "html head style body p h1 h2 h3 h4 h5 h6 ul ol li a em strong code pre blockquote hr br s table thead tbody tr th td".split()
)
_MARKDOWN = st.lists(
    st.sampled_from(["# ", "**", "_", "`", "```\n", "- ", "1. ", "> ", "| a | b |\n|---|---|\n| 1 | 2 |\n", "[x](http://y.z)",
                     "![pic](http://y.z/p.png)", "<script>alert(1)</script>", "<b onclick=x>", "[j](javascript:alert(1))", "\n", "\n\n",
                     "word ", "~~", "&lt;", "&", '"', "\\", "---\n", "    ", "\x00", "\ud800", "ü", "🙂"]),
    max_size=40,
).map("".join)  # fmt: skip


@given(st.one_of(_MARKDOWN, st.text()))
def test_any_text_becomes_whole_and_harmless_html(text: str) -> None:
    page = Balance()
    page.feed(as_html(text))
    page.close()
    assert not page.open
    assert page.tags <= ALLOWED
    assert not any(link.lower().startswith(("javascript:", "vbscript:", "data:")) for link in page.links)


@given(st.one_of(_MARKDOWN, st.text()), st.text(), st.text())
def test_any_text_and_subject_make_a_mail_that_says_the_same(text: str, subject: str, name: str) -> None:
    raw = written(
        sender=(name, US),
        recipient="alice@example.org",
        subject=subject,
        text=text,
        message_id="<2@lab.test>",
        above=["<1@x>"],
    )
    mail = read_mail(raw, "somebody@else.org")
    assert (mail.address, mail.message_id, mail.references) == (US, "<2@lab.test>", ("<1@x>",))
    assert " ".join(mail.subject.split()) == " ".join(header_text(subject).split())
    assert max(len(line) for line in raw.split(b"\r\n")) <= 998
    assert b"\n" not in raw.replace(b"\r\n", b"")


def test_markdown_becomes_html_beside_the_text_itself() -> None:
    text = "# Plan\n\n- **one**\n- `two`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint('<x>')\n```"
    html = as_html(text)
    for piece in ("<h1>Plan</h1>", "<strong>one</strong>", "<code>two</code>", "<td>1</td>", "print('&lt;x&gt;')"):
        assert piece in html
    assert "![" not in as_html("![a](http://t.example/p.png)") and "<img" not in as_html("![a](http://t.example/p.png)")


def test_a_subject_can_not_bring_headers_of_its_own() -> None:
    raw = written(
        sender=("A\r\nBcc: x@y.z", US),
        recipient="a@b.org",
        subject="hi\r\nBcc: x@y.z",
        text="t",
        message_id="<2@l>",
        above=[],
    )
    assert b"\r\nBcc:" not in raw


def test_long_ids_of_others_are_handed_back_as_they_are() -> None:
    long = "<" + "a" * 200 + "@" + "b" * 100 + ".example.org>"
    raw = written(
        sender=("", US), recipient="a@b.org", subject="x", text="t", message_id="<2@l>", above=["<1@x>", long]
    )
    assert read_mail(raw, "x@y.z").references == ("<1@x>", long)


def test_a_mail_is_named_by_its_nonce_and_a_thread_by_how_it_begins() -> None:
    assert message_id_for("n", "lab.test") == message_id_for("n", "lab.test") != message_id_for("m", "lab.test")
    assert subject_from("\n# **Good** morning\n\ntext") == "Good morning"
    assert len(subject_from("word " * 100)) <= 70
    assert subject_from("") == "A message"
