"""Masks secrets in text before it is stored: `redact(text)` replaces each one by `[masked:<kind>]`.

Nearly every message holds no secret, so that case is made cheap: a few passes at C speed over a copy with one
byte a character decide whether a closer look is needed. Four searches follow: tokens of a known shape
(each begins a run of at least 20 word characters), values assigned to a secret's name (`PASSWORD=…`,
`"api_key": "…"`), places (private-key blocks, URLs, headers, cookies), and passwords given to a command
(`curl -u ada:…`) or told in a sentence ("my password is …"). The shapes of providers' tokens are facts,
collected from their documentation and from the rules of public secret scanners.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` and `re` cost more to import than this whole module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from re import Match

    Span = tuple[int, int, str]

_MASK = "[masked:"
_LONGEST = 4096  # characters of a value in quotes
_ROUNDS = 8  # a mask rarely uncovers another secret; this bounds the work if it does

# Copies of the text with one byte a character keep every position. In _WORDS all characters a token can be
# made of become the same letter, so that one substring search finds long runs. _FOLD and _GLUE bring
# `"Api_Key" : ` and `apikey=` to the same form, for the gate in front of the assignments.
_RUN = b"w" * 20
_WORD_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_WORD_CHARACTERS = _WORD_BYTES.decode()
_WORDS = bytes(ord("w") if c in _WORD_BYTES else ord(" ") for c in range(256))
_FOLD = bytes(range(256)).lower().replace(b":", b"=")
_GLUE = b" \t\"'\\`0123456789]_-."

# kind, first two characters, shape at the start of a run. ~ stands for a word character, # for "a digit
# follows". Text matched by a look-behind stays, as it names the secret. Such a kind has no first characters, but an
# entry in _TAILS for the text before it; Discord's is recognised by the dot behind its first part.
_TOKENS = (
    ("anthropic", "sk", r"sk-ant-#~{20,}"),
    ("openrouter", "sk", r"sk-or-#~{20,}"),
    ("openai", "sk", r"sk-(?:(?:proj|svcacct|service|admin|None)-#~{20,}|#[A-Za-z0-9]{20,}(?!~))"),
    ("sk", "sk", r"sk-~{20,}"),  # "openai" if it looks random; style sheets have names that begin like this
    ("stripe", "sk rk wh", r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{24,}={0,2}"),
    ("github", "gh gi", r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}"),
    ("gitlab", "gl", r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-~{20,}(?:\.[0-9a-z]{2,9}){0,2}"),
    ("slack", "xo xa", r"(?:xox[a-z]-|xapp-[0-9]-)#~{10,}"),
    ("aws", "AK AS AB AC", r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?!~)|ABSK[A-Za-z0-9+/]{80,}={0,2}"),
    ("google", "AI GO", r"AIza~{32,}|GOCSPX-~{20,}|(?<=ya29\.)~[A-Za-z0-9_.-]{19,}|(?<=1//)0~{40,}"),
    ("telegram", "", r"(?<=[0-9]{6}:)#(?=[a-z0-9_-]*[A-Z])(?=[A-Z0-9_-]*[a-z])~{33,37}(?!~)"),
    ("npm", "np", r"npm_[A-Za-z0-9]{30,}"),
    ("pypi", "py", r"pypi-A~{40,}"),
    ("twilio", "SK", r"SK[0-9a-f]{32}(?!~)"),
    ("huggingface", "hf ap", r"(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    ("jwt", "ey", r"eyJ~{10,}\.(?:eyJ~{6,}\.~*|~*\.~{8,}\.~{8,}\.~{10,})"),
    ("discord", "", r"[MNO]#~{22,27}\.~{6}\.~{27,}"),
    ("sendgrid", "", r"(?<=SG\.)~{20,24}\.~{39,50}"),
    ("vault", "", r"(?<=hv[sb]\.)~{24,}"),
    ("age", "AG", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    ("atlassian", "AT", r"ATATT3~{50,}(?:=[0-9A-F]{8})?"),
    ("databricks", "da", r"dapi[0-9a-f]{32}"),
    ("digitalocean", "do", r"do[opr]_v1_[0-9a-f]{60,}"),
    ("elevenlabs", "sk", r"sk_[0-9a-f]{40,}"),
    ("grafana", "gl", r"glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}"),
    ("groq", "gs", r"gsk_[A-Za-z0-9]{40,}"),
    ("linear", "li", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}"),
    ("mailgun", "ke", r"key-#[0-9a-z]{32}(?!~)|[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}(?!~)"),  # the second: 50 long
    ("notion", "nt", r"ntn_[A-Za-z0-9]{40,}"),
    ("nvidia", "nv", r"nvapi-~{40,}"),
    ("perplexity", "pp", r"pplx-[A-Za-z0-9]{40,}"),
    ("postman", "PM", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    ("replicate", "r8", r"r8_[A-Za-z0-9]{30,}"),
    ("shopify", "sh", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    ("tavily", "tv", r"tvly-#~{24,}"),
    ("xai", "xa", r"xai-[A-Za-z0-9]{60,}"),
)
_HEADS = frozenset(head.encode() for _, heads, _ in _TOKENS for head in heads.split())
_TAILS = frozenset([b"29.", b"SG.", b"vs.", b"vb.", b"1//", b"er ", b"ER "] + [b"%02d:" % n for n in range(100)])
_GLUED = frozenset((b"/", b"[", b";", b"%", b"\\"))

# Names whose value is a secret: the last word of the name, as literals the searches can start with.
_NAMES = (
    ("password", rb"pass(?:w(?:or)?d|phrase|code)?"),
    ("password", rb"pwd"),
    ("secret", rb"secret"),
    ("token", rb"token"),
    ("api-key", rb"key(?:_base)?"),
    ("basic", rb"auth"),
)
# A key is a secret only after these words: a plain key, a primary key or a cache key is none.
_OWNERS = (
    "api app access secret private auth encryption encrypt signing master account shared subscription admin"
    " hmac security storage service"
)
_KEY_OWNERS = tuple(_OWNERS.split())
_SPOKEN_OWNERS = ("api ", "access ", "secret ")  # "my API key: …", but not "the signing key: <id>"
_EXAMPLES = ("password", "passwd", "pass", "pwd", "pw", "secret", "token")
_NAMING = (*_EXAMPLES, "key")
_CURSORS = ("page", "next", "continuation", "sync", "cursor", "cancellation")  # tokens that only mark a place
_NOTHING = (
    "password passwd passphrase secret token required optional string text varchar input field hidden masked"
    " redacted empty unset default example sample changeme changeit replaceme placeholder undefined unknown"
    " invalid incorrect missing correct wrong disabled enabled prompt plaintext plain bcrypt argon scrypt"
    " sha256 sha512 base64 utf8 aes128 aes256 true false none null uint8 uint16 uint32 uint64 int32 int64"
)
_NO_VALUES = frozenset(_NOTHING.split())  # words in a secret's position that are no secrets
# Programs with a password among their arguments.
_PROGRAMS = ("curl", "mysql", "mariadb", "redis-cli", "sshpass")
_COMMAND = 2000  # characters of a command, across continued lines
# Words of which one stands in front of a password in a sentence, in six languages, each with its end.
_TOLD = (
    (b"pass", rb"(?:wor[dt]|phrase|code|e(?<=mot de passe))"),
    (b"contrase", rb"(?:\xf1|\\{1,7}u00f1)a"),
    (b"senha", rb""),
)
_HASHES = ("argon", "bcrypt", "scrypt", "pbkdf", "sha", "md5")  # "the password is argon2id"
_ATTRIBUTES = frozenset("path expires max-age domain samesite version priority comment".split())  # of a Set-Cookie
_LOGINS = ("sess", "sid", "auth", "token", "csrf", "xsrf", "jwt", "login", "remember")  # in names of cookies


class _Patterns:
    """Every compiled pattern; made once, on the first call of `redact`."""

    def __init__(self) -> None:
        import re

        ends = b"|".join(sorted({w[-1:].encode() + b"key" for w in _KEY_OWNERS}))
        owners = b"|".join(sorted({w[-2:].encode() for w in _KEY_OWNERS}))
        self.assigns: Callable[[bytes], Match[bytes] | None] = re.compile(
            # Nothing but look-behinds at each "=": a literal to start with, and the cheapest tests first.
            rb"=(?<=[dehnsty]=)"
            rb"(?<=(?:word|sswd|cret|oken|auth|pass|rase|code|tion|base|.pwd|" + ends + rb")=)"
            rb"(?:(?<=token=)|(?<=secret=)|(?<=password=)|(?<=passwd=)|(?<=pass=)|(?<=passphrase=)"
            rb"|(?<=passcode=)|(?<=auth=)|(?<=authorization=)|(?<=keybase=)|(?<=pwd=)"
            rb"|(?<=(?:" + owners + rb")key=))",
            re.DOTALL,
        ).search
        shapes = "|".join(f"(?P<{kind}>{shape})" for kind, _, shape in _TOKENS)
        self.token = re.compile(shapes.replace("#", "(?=~*?[0-9])").replace("~", "[A-Za-z0-9_-]"))
        self.hook = re.compile(
            r"hooks(?:\.slack\.com/(?:services|workflows|triggers)|/[0-9]{15,21})/([A-Za-z0-9/_-]{20,200})"
        )
        self.bearer = re.compile(r"earer[ \t]{1,4}([A-Za-z0-9._~+/-]{16,}=*)")
        self.header = re.compile(
            rb"authorization(?:\\{0,7}[\"'])?\]?[ \t]{0,4}[:=,][ \t]{0,4}(?:f?\\{0,7}[\"'`])?"
            rb"(?:(bearer|basic|token|bot|apikey|key|oauth)[ \t]{1,4})?([a-z0-9][a-z0-9._~+/-]{5,}=*)"
        )
        self.url = re.compile(r"://([^\s/?#:@\"'`\\<>()\[\]]{0,128}):([^\s/?#\"'`\\<>()]{1,256})@(?=[\w\[])")
        self.key_begin = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
        gap = r"(?:[\s\"',]|\+(?=[\s\"'])|\\{1,8}[nrt\"']){0,200}+"
        armour = r"(?:[A-Z][A-Za-z-]{2,20}+: [^\n\"\\]{0,120}+(?:\n|\\{1,8}n)" + gap + "){0,6}+"
        self.key_piece = re.compile(gap + armour + r"((?:[A-Za-z0-9+/]|\\/){16,}={0,2})")
        self.key_rest = re.compile(gap + r"(=?(?:[A-Za-z0-9+/]|\\/){1,15}={0,2})" + gap + "-----END")
        value_follows = (
            rb"[0-9]{0,2}(\\{0,7}[\"'`])?\]?[ \t]{0,8}"
            # `: str =`, but not as prose might continue, or one of the plain signs
            rb"(:[ \t]{0,4}[a-z_][a-z_.]{0,30}(?:\[[a-z_., |]{0,40}\])?(?: ?\| ?none)?[ \t]{0,4}="
            rb"(?=[ \t]{0,4}[rbfu]{0,2}\\{0,7}[\"'])|:=|=>|={1,3}|:(?!:))[ \t]{0,8}"
        )
        self.assignments = tuple((kind, re.compile(rb"(" + word + rb")" + value_follows)) for kind, word in _NAMES)
        self.quote = re.compile(r"([rbfuRBFU]{0,2})(\\{0,7}[\"'`])")
        self.ends = {quote: re.compile(rf"(\\*){quote}|\n") for quote in "\"'`"}
        self.bare = re.compile(r"[^\s\"'`\\,;<>(){}\[\]|&]{1,4096}")
        self.bare_line = re.compile(r"[^\s\"'`\\;|<>]{1,4096}(?<![,)&}\]])")
        self.placeholder = re.compile(
            r"[$@]\w+$|[{(<\[].*[})>\]]$|\$[({]|%[({sdrv]|%\w+%$|\*\*|\.\.|your"  # $VAR, <key>, {x}, %s, ***, …
            r"|[\^~<>=v]{0,2}[0-9]+(?:\.[0-9]+)+[\w.+-]*$|(?:0x|#)[0-9a-f]{3,8}$|[a-z_][\w.]*[(\[]"  # 1.2, 0xff, f(
            r"|(?:my|the|some|insert|enter|replace|put|example|sample|dummy|fake|placeholder|change|redacted|none"
            r"|null|nil|undefined|true|false|required|optional|string|todo|tbd|op|vault|arn|file|env|os\.environ"
            r"|process\.env|secrets?\.|vars\.)(?![A-Za-z0-9])|change[_-]?(?:me|this|it)\b"
            r"|.*?(?:\.\.\.|…|\*\*\*|xxxx|\$\{|\{\{|\{[a-z_][\w.]*\}|%\(|<[a-z_ -]+>|`|::)",
            re.IGNORECASE,
        )
        # Each begins with a literal, which is searched for at C speed. In JSON, \n is a line break.
        self.programs = tuple(
            (word, re.compile(
                rf"{word}(?:(?<![\w.-]{word})|(?<=\\[nt]{word}))(?:-?(?:dump|admin|import|check|show|slap))?(?:\.exe)?(?=[ \t])"
            ))
            for word in _PROGRAMS
        )  # fmt: skip
        # A line break ends a command unless a backslash stands before it; in JSON that is \n, and \\\n if continued.
        self.command_end = re.compile(r"(?<!\\)(?:\n|\\{1,2}n)|&&|\|\||\|[ \t]|;(?=[\s\\]|$)")
        login = re.compile(r"[ \t](?:-[a-zA-Z]{0,8}[uU][ \t]*|--(?:proxy-)?user(?:[ \t]+|=))(?=[^\s-])")
        after_p = re.compile(r"[ \t](?:-p|--password=)(?=[^\s-])")
        after_a = re.compile(r"[ \t](?:-a|--pass)[ \t]+(?=[^\s-])")
        after_pass = re.compile(r"[ \t]-p[ \t]*(?=[^\s-])")
        self.options = {"c": login, "m": after_p, "r": after_a, "s": after_pass}  # by the first letter of the program
        self.any_password = re.compile(r"--(?:[a-z]{1,20}-)?pass(?:word|wd|phrase)?[ \t]{1,4}(?=[^\s-])")
        between = r"(?:\s|\\{1,7}[nrt]){1,8}"
        self.netrc = re.compile(
            rf"machine{between}([^\s\"'\\]{{1,200}}){between}login{between}[^\s\"'\\]{{1,200}}{between}"
            rf"(?:account{between}[^\s\"'\\]{{1,200}}{between})?password{between}([^\s\"'\\]{{1,200}})"
        )
        self.cookies = re.compile(
            r"ookie(?<=[Cc]ookie)(?:(?<=--cookie)[ \t=]|(?:\\{0,7}[\"'])?[ \t]{0,4}:)[ \t]{0,4}(?:\\{0,7}[\"'])?"
        )
        self.cookie = re.compile(r"[ ]?([\w.!#$%&*+^|~-]{1,64})(?:=([^;\s\"'\\]{0,4096}))?[^;\n\"'\\]{0,64}(;?)")
        tells = (
            rb"(?:[ \t]{1,4}(?:for|of|to|on|f\xfcr|von|pour|de|para|per)[ \t][^\n.,:;?!\"\\]{1,40}?)?"
            rb"[ \t]{1,4}(?:is|was|ist|war|lautet|est|es|\xe9|\xe8|e|\\{1,7}u00e[89])"
            rb"(?:[ \t]{1,4}(?:now|still|set to|jetzt))?[ \t]?:?[ \t]{1,4}"
        )
        self.told = tuple((word, re.compile(word + rest + tells)) for word, rest in _TOLD)
        self.said = re.compile(r"[^\s\"'`\\<>()\[\]{},;|]{4,128}")
        self.identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:(?:\.|->)[A-Za-z_][A-Za-z0-9_]*)*[?!.:]?$")
        self.words = re.compile(r"[A-Z]*[a-z0-9]+|[A-Z0-9]+")  # of snake_case and camelCase
        self.technical = re.compile(
            r"(?<![a-z])(?:oauth|sha|md|base|utf|u?int|float|aes|rsa|ed|x|http|ipv|h|mp|es|p|s|ec|k|i|a|l|v|vp|web|py|rc|r|t"
            r"|eth|alpha|beta)[0-9]+(?:[sn](?![a-z]))?",
            re.IGNORECASE,
        )
        self.inside = re.compile(r"[A-Za-z][0-9]+[A-Za-z]|[A-Za-z]{5}[0-9]$|[A-Za-z0-9][@#$^!~][A-Za-z0-9]")
        self.pieces = re.compile(r"[A-Za-z0-9]+")
        self.switch = re.compile(r"(?<=[0-9])[A-Za-z]|(?<=[A-Za-z])[0-9]|(?<=[a-z])[A-Z]")


_patterns: _Patterns | None = None


def redact(text: str) -> str:
    """Return `text` with every secret in it replaced by `[masked:<kind>]`, and everything else unchanged.

    The name, user, host or header in front of the secret stays. JSON stays JSON, redacting twice
    changes nothing more, and text without a secret comes back as the very same object. Any string is accepted.
    """
    for _ in range(_ROUNDS):
        spans = _find(text)
        if not spans:
            break
        text = _apply(text, spans)
    return text


def _find(text: str) -> list[Span]:
    """Where the secrets are; of two that overlap the earlier in the list is the better description."""
    global _patterns
    p = _patterns
    if p is None:
        p = _patterns = _Patterns()
    raw = text.encode("latin-1", "replace")  # one byte a character, for any text
    spans: list[Span] = []
    if "PRIVATE KEY" in text:
        spans += _private_keys(p, text)
    words = raw.translate(_WORDS)
    if _RUN in words:
        spans += _tokens(p, text, raw, words)
    del words  # its memory serves the next copy
    if "@" in text:
        spans += _urls(p, text)
    low, folded = raw.lower(), raw.translate(_FOLD, _GLUE)
    if p.assigns(folded) or folded.startswith(b"pwd="):
        spans += _headers(p, text, low)
        spans += _assignments(p, text, low)
    passes = b"pass" in low
    if " -" in text and (passes or any(map(text.__contains__, _PROGRAMS))):
        spans += _arguments(p, text)
    accents = not text.isascii() or b"\\u00" in low
    if passes or (accents and (b"contrase" in low or b"senha" in low)):
        spans += _sentences(p, text, low)
    if passes and "machine" in text:
        spans += _netrc(p, text)
    if "ookie" in text:
        spans += _cookies(p, text)
    return spans


def _apply(text: str, spans: list[Span]) -> str:
    """The text with the spans masked, each character at most once."""
    chosen: list[tuple[int, int, int]] = []  # start, rank, end
    for start, rank in sorted((span[0], rank) for rank, span in enumerate(spans)):
        end = spans[rank][1]
        if chosen and start < chosen[-1][2]:
            if rank < chosen[-1][1]:
                chosen[-1] = (start, rank, end)
            continue
        chosen.append((start, rank, end))
    parts: list[str] = []
    at = 0
    for start, rank, end in chosen:
        parts += (text[at:start], _MASK, spans[rank][2], "]")
        at = end
    parts.append(text[at:])
    return "".join(parts)


def _tokens(p: _Patterns, text: str, raw: bytes, words: bytes) -> Iterator[Span]:
    """Tokens of a known shape. Only the start of a run is tried, so the work is linear."""
    find, heads, tails = words.find, _HEADS, _TAILS  # this loop runs for every long word of source code
    slash = bearer = False
    start = at = find(_RUN)
    while at >= 0:
        end = find(b" ", at + 20)
        tail = raw[at - 3 if at > 3 else 0 : at]
        if tail[-1:] in _GLUED or raw[at] in b"-_":
            slash = slash or tail[-1:] == b"/"
            start = _token_start(raw, tail[-1:], at)
        first = raw[start : start + 2]
        if (
            first in heads
            or tail in tails
            or (raw[end] == 0x2E and first[:1] in b"MNO")
            or end - start == 50
            or end < 0
        ):
            bearer = bearer or tail.lower() == b"er "
            found = _token(p, text, start)
            if found and not text.startswith("+", found[1]):  # "+": we are inside of base64
                yield found
                end = max(end, found[1]) if end >= 0 else end
        start = at = find(_RUN, end) if end >= 0 else -1
    if slash:
        yield from ((*m.span(1), "webhook") for m in p.hook.finditer(text))
    if bearer or slash:
        for m in p.bearer.finditer(text):
            if _opaque(p, m[1]) and not p.placeholder.match(m[1]):
                yield *m.span(1), "bearer"


def _token_start(raw: bytes, before: bytes, at: int) -> int:
    """Where a run actually begins if its first characters belong to an escape, a colour code or mark-up."""
    if before == b"\\":  # a backslash and n, or u0041
        at += 5 if raw[at] == 0x75 else 1
    elif before == b"%":  # %3D
        at += 2
    elif before in (b"[", b";"):  # ESC [1;32m
        at = raw.find(b"m", at, at + 4) + 1 or at
    while raw[at] in b"-_" and at + 20 < len(raw):  # _token_
        at += 1
    return at


def _token(p: _Patterns, text: str, at: int) -> Span | None:
    m = p.token.match(text, at)
    if m is None:
        return None
    kind = str(m.lastgroup)
    start, end = m.span(kind)
    if kind == "sk":
        kind = "openai" if _random(p, m[0]) else ""
    return (start, end, kind) if kind and "xxxxxxxx" not in m[0].lower() else None


def _private_keys(p: _Patterns, text: str) -> Iterator[Span]:
    """The base64 between the marks of a private-key block, also cut short, escaped, or one string a line."""
    for begin in p.key_begin.finditer(text):
        start = stop = 0
        at = begin.end()
        while piece := p.key_piece.match(text, at) or p.key_rest.match(text, at):
            first, at = piece.span(1)
            if start and ('"' in text[stop:first] or "'" in text[stop:first]):
                yield start, stop, "private-key"
                start = 0
            start, stop = start or first, at
        if start:
            yield start, stop, "private-key"


def _urls(p: _Patterns, text: str) -> Iterator[Span]:
    """The password of scheme://user:password@host."""
    for m in p.url.finditer(text):
        if _is_given(p, m[2]):
            yield *m.span(2), "password"


def _headers(p: _Patterns, text: str, low: bytes) -> Iterator[Span]:
    """The text after the scheme of an Authorization header."""
    for m in p.header.finditer(low):
        scheme, (start, end) = (m[1] or b"").decode(), m.span(2)
        value = text[start:end]
        if p.placeholder.match(value):
            continue
        if scheme == "basic":
            if _is_basic(value):
                yield start, end, "basic"
        elif _opaque(p, value) if scheme else len(value) >= 16 and _random(p, value):
            yield start, end, "bearer" if scheme in ("bearer", "") else "token"


def _is_basic(value: str) -> bool:
    """Whether `value` is the base64 of user:password, which "authentication" is not."""
    from binascii import a2b_base64

    try:
        return b":" in a2b_base64(value + "=" * (-len(value) % 4), strict_mode=True)
    except ValueError:
        return False


def _arguments(p: _Patterns, text: str) -> Iterator[Span]:
    """Passwords among the arguments of a command: curl -u ada:…, mysql -p…, redis-cli -a …, sshpass -p …"""
    found = [m for word, pattern in p.programs if word in text for m in pattern.finditer(text)]
    commands = sorted(found, key=lambda m: m.start())
    ends = [*(one.start() for one in commands[1:]), len(text)]  # none reaches into the next: the work is linear
    for command, last in zip(commands, ends if commands else (), strict=True):
        last = min(last, command.end() + _COMMAND)
        over = p.command_end.search(text, command.end(), last)
        last = over.start() if over else last
        for option in p.options[command[0][0]].finditer(text, command.end(), last):
            argument = _argument(p, text, option.end())
            if argument is None:
                continue
            start, end = argument
            if command[0] == "curl":
                start = text.find(":", start, end) + 1 or end
            if _is_given(p, text[start:end]):
                yield start, end, "password"
    for option in p.any_password.finditer(text):  # of any program
        if argument := _argument(p, text, option.end()):
            yield from _told_value(p, text, argument, quoted=argument[0] > option.end())


def _argument(p: _Patterns, text: str, at: int) -> tuple[int, int] | None:
    """Where the argument that begins here starts and ends, without its quotes."""
    if opening := p.quote.match(text, at):
        return None if opening[1] else _quoted(p, text, opening)
    bare = p.bare_line.match(text, at)
    return bare and bare.span()


def _is_given(p: _Patterns, value: str) -> bool:
    """Whether a value in a password's place is one, and not an example or a placeholder."""
    if _MASK in value or value.lower() in _EXAMPLES or len(set(value)) < 2:
        return False
    return not p.placeholder.match(value)


def _netrc(p: _Patterns, text: str) -> Iterator[Span]:
    """The passwords of a .netrc file: machine example.org login ada password …"""
    for m in p.netrc.finditer(text):
        is_host = "." in m[1] or m[1] == "localhost"
        if _is_given(p, m[2]) and (is_host or _looks_chosen(p, m[2])):
            yield *m.span(2), "password"


def _cookies(p: _Patterns, text: str) -> Iterator[Span]:
    """The values of a Cookie or Set-Cookie header, but not those that are settings (theme=dark)."""
    looked_to = 0
    for header in p.cookies.finditer(text):
        at = header.end()
        if at < looked_to:
            continue
        while m := p.cookie.match(text, at):
            at = looked_to = m.end()
            name, value = m[1].lower(), m[2] or ""
            enough = 6 if any(word in name for word in _LOGINS) else 16
            is_opaque = len(value) >= enough and _opaque(p, value) and name not in _ATTRIBUTES
            if is_opaque and _is_given(p, value):
                yield *m.span(2), "cookie"
            if not m[3]:
                break


def _sentences(p: _Patterns, text: str, low: bytes) -> Iterator[Span]:
    """Passwords told in a sentence: my password is …, das Passwort lautet …"""
    for m in (m for word, pattern in p.told if word in low for m in pattern.finditer(low)):
        if opening := p.quote.match(text, m.end()):
            if found := None if opening[1] else _quoted(p, text, opening):
                yield from _told_value(p, text, found, quoted=True)
        elif said := p.said.match(text, m.end()):
            yield from _told_value(p, text, (said.start(), said.start() + len(said[0].rstrip(".:?"))), quoted=False)


def _told_value(p: _Patterns, text: str, place: tuple[int, int], *, quoted: bool) -> Iterator[Span]:
    """The value in a place where a password is told, unless it is a word of a sentence, an example or a placeholder."""
    value = text[slice(*place)]
    if quoted:
        is_word = len(value) >= 4 and not any(c.isspace() for c in value) and value[0] not in ",:]}"
        is_one = is_word and value.lower().rstrip("?!.") not in _NO_VALUES
    else:
        is_one = _looks_chosen(p, value.rstrip("!"))
    if is_one and _is_given(p, value):
        yield *place, "password"


def _looks_chosen(p: _Patterns, value: str) -> bool:
    """Whether a bare word is a password rather than a word of the sentence: digits or special characters are in it."""
    if value.isdigit():
        return len(value) >= 6
    if "://" in value or value.lower().startswith(_HASHES) or (p.identifier.match(value) and _names_itself(p, value)):
        return False
    rest = p.technical.sub("", value).lstrip("0123456789")  # 2FA-protected, 8-character
    if sum(c.isalpha() for c in rest) < 3:
        return False
    special = any(c in "@#$%^*!~=" for c in rest[1:-1])
    return _has_digit(rest) or special or (value.isalpha() and _switches(p, value) >= 3)


def _assignments(p: _Patterns, text: str, low: bytes) -> Iterator[Span]:
    """Values assigned to a secret's name, quoted or bare."""
    for kind, pattern in p.assignments:
        looked_to = 0  # a=a=a=…: each value is looked at once
        for m in pattern.finditer(low):
            start = m.start()
            if start < looked_to:
                continue
            owner = _owner(text, start)
            if text.endswith(_MASK, 0, start - len(owner)) or not _is_telling(kind, text, owner, m):
                continue
            name = owner + text[start : m.end(1)]
            found = _value(p, text, name, m)
            if found is None:
                continue
            style, begin, end = found
            looked_to = end
            value = text[begin : min(end, begin + 256)]
            if _is_secret(p, kind, style, name, value) and _MASK not in text[begin:end]:
                yield begin, end, "aws" if kind == "api-key" and "aws" in name.lower() else kind


def _owner(text: str, start: int) -> str:
    """The part of a name in front of its last word, which begins at `start`."""
    head = text[max(0, start - 48) : start]
    owner = head[len(head.rstrip(_WORD_CHARACTERS)) :]
    if owner and head[: -len(owner)].endswith("\\"):
        owner = owner[1:]  # the letter of an escape
    return owner


def _is_telling(kind: str, text: str, owner: str, m: Match[bytes]) -> bool:
    """Whether the whole name means a secret, as api_key does and cache_key does not."""
    word = owner.lower().rstrip("_.-")
    if kind == "api-key":
        before = text[max(0, m.start() - 8) : m.start()].lower()
        return word.endswith(_KEY_OWNERS) if owner else before.endswith(_SPOKEN_OWNERS)
    if kind == "token":
        return not word.endswith(_CURSORS)
    if kind == "basic":
        return not word
    if m[1] == b"pass":  # dbPass, DB_PASS, db.pass; not minipass, bypass
        return not owner or owner[-1] in "_-." or text[m.start()] == "P"
    return True


def _value(p: _Patterns, text: str, name: str, m: Match[bytes]) -> tuple[str, int, int] | None:
    """How the value behind a name is written, where it starts and where it ends."""
    if opening := p.quote.match(text, m.end()):
        found = _quoted(p, text, opening)
        same = m[2] is not None and m[2].decode() == opening[2]
        return found and ("json" if same else "quoted", *found)
    if m[2] is not None:
        return None  # behind a quoted name: a number in JSON, or code
    spaced = b" " in m[0] or b"\t" in m[0]
    environment = m[3] == b"=" and not spaced and name.isupper()
    bare = (p.bare_line if environment else p.bare).match(text, m.end())
    if bare is None:
        return None
    start, end = bare.span()
    if environment:
        return "environment", start, end
    if text.startswith(("(", "["), end) or (spaced and name.lower() == "pass"):  # PASS: test_login
        return "code", start, end
    return "bare", start, start + len(bare[0].rstrip(".:"))


def _quoted(p: _Patterns, text: str, opening: Match[str]) -> tuple[int, int] | None:
    """Where the string that opens here starts and ends. None if it does not close, or is made by code.

    A quote inside JSON inside JSON has 1, 3 or 7 backslashes before it; one that is part of the string has
    more. Escapes are taken whole and no quote of an outer level is passed, so the JSON around stays JSON.
    """
    depth, quote, start = len(opening[2]) - 1, opening[2][-1], opening.end()
    for m in p.ends[quote].finditer(text, start, start + _LONGEST):
        inner, odd = divmod((m.end(1) - m.start()) - depth, depth + 1)
        if m[1] is None or odd or inner < 0 or depth not in (0, 1, 3, 7):
            break
        if inner % 2 == 0:
            end = m.end(1) - depth
            value = text[start:end]
            formatted = "f" in opening[1].lower() and "{" in value
            if not value or formatted or (quote != '"' and '"' in value):
                break
            return start, end
    return None


def _is_secret(p: _Patterns, kind: str, style: str, name: str, value: str) -> bool:
    """Whether a value is a secret, by its name, its notation and its shape."""
    lower = value.lower().rstrip("?!")
    if style == "code" or len(set(lower)) < 3 or lower in _NO_VALUES:
        return False
    if p.placeholder.match(value) or (value.startswith(("/", "~/", "./", "../")) and not _has_digit(value)):
        return False
    if style == "environment":
        return _is_secret_of_environment(kind, name, value)
    if style == "bare":
        return _is_bare_secret(p, kind, value)
    if style == "quoted" and value[0] in ",:]}":
        return False  # the quote closed a string of JSON: this text is between two strings
    return not any(c.isspace() for c in value) and _is_quoted_secret(p, kind, value)


def _is_quoted_secret(p: _Patterns, kind: str, value: str) -> bool:
    if kind == "basic":
        return len(value) >= 8 and not value.islower() and _is_basic(value)
    if kind != "password":
        enough = _mixed(value) or _switches(p, value) >= (2 if len(value) >= 8 else 3)
        return len(value) >= 6 and _has_digit(value) and enough
    if value.isalpha():  # "hunter" is a password; "Password", "passwordField" and "newpassword" are labels
        return value.islower() and value.isascii() and len(value) >= 6 and not value.endswith("password")
    return len(value) >= 4


def _is_secret_of_environment(kind: str, name: str, value: str) -> bool:
    """NAME=value: such lines are rarely prose or code."""
    if kind == "password":
        return len(value) >= 4 and (name != "PASS" or not value.isdigit())  # PASS=1234: a count of passed tests
    if kind == "secret" and value.isalpha():
        return len(value) >= 8
    return kind != "basic" and len(value) >= 6 and _has_digit(value) and any(c.isalpha() for c in value)


def _is_bare_secret(p: _Patterns, kind: str, value: str) -> bool:
    """Without quotes: a secret, and not code, a type, a number or a word of prose."""
    identifier = p.identifier.match(value)
    if kind != "password":
        dotted = identifier is not None and "." in value
        if kind == "basic" or _random(p, value, strict=dotted) or _mixed(value):
            return kind != "basic"
        return len(value) >= 6 and not dotted and _is_chosen(p, value)
    if value.isdigit():
        return len(value) >= 6
    if identifier:
        return len(value) >= 4 and "." not in value.rstrip(".:") and _has_digit(value) and not _names_itself(p, value)
    peculiar = any(c in "0123456789@#$%^*!~" for c in value[1:])
    return peculiar and len(value) >= 4 and any(c.isalpha() for c in value)


def _names_itself(p: _Patterns, value: str) -> bool:
    """Whether an identifier says what it holds, as new_password2 and dbPassword1 do and hunter2secret does not."""
    for word in p.words.findall(value):
        plain = word.rstrip("0123456789").lower()
        if any(not _has_digit(plain.replace(example, "")) for example in _NAMING if example in plain):
            return True
    return False


def _is_chosen(p: _Patterns, value: str) -> bool:
    """Whether this looks like a chosen password: hunter2secret or S3cure!Pass, but no word that usually has digits.

    Many other words stand in front of a token or a key (oauth2, v1beta1, k8s-name, token2), so it takes a digit inside
    a word, or one of the special characters common in passwords.
    """
    if p.identifier.match(value) and _names_itself(p, value):
        return False
    rest = p.technical.sub("", value)
    return bool(p.inside.search(rest)) and sum(c.isalpha() for c in rest) >= 4


def _mixed(value: str) -> bool:
    """Whether letters and digits are mixed as in abcd1234efgh, which no name in code is."""
    digits = sum("0" <= c <= "9" for c in value)
    return value.isalnum() and digits >= 4 and len(value) >= max(12, digits + 4)


def _has_digit(value: str) -> bool:
    return any("0" <= c <= "9" for c in value)


def _opaque(p: _Patterns, value: str) -> bool:
    """Whether the value of a bearer header is a credential: "authentication" and "YOUR_TOKEN" are not."""
    return len(value) >= 8 and (_has_digit(value) or _switches(p, value) >= 3)


def _switches(p: _Patterns, value: str) -> int:
    """How often a value changes between letters, digits and capitals: random text does so often."""
    return len(p.switch.findall(value))


def _random(p: _Patterns, value: str, *, strict: bool = False) -> bool:
    """Whether a value looks random rather than written by a person."""
    size = sum(map(len, p.pieces.findall(value)))
    return size >= 10 and _has_digit(value) and _switches(p, value) >= max(4, size // (4 if strict else 6))
