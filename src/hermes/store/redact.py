"""Masks secrets in text before it is stored: `redact(text)` replaces each one by `[masked:<kind>]`.

Searches, each for secrets of one sort: private-key blocks, tokens of a known shape (each begins a run of at least 20 word
characters), known places (URLs, headers, cookies), values assigned to a secret's name (`PASSWORD=…`, `"api_key": "…"`),
passwords given to a command (`curl -u ada:…`) or told in a sentence ("my password is …"). The first half of the file says what
secrets look like, and how they differ from names, examples and placeholders; the shapes of providers' tokens are facts,
collected from their documentation and from the rules of public secret scanners.

Nearly every message holds none, so patterns and searches begin with a literal that is found at C speed. Some read a copy of the
text with one byte a character, which keeps every position.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from re import Match, Pattern

MASK = "[masked:"
# Kind and shape of a token at the start of a run of word characters. ~ stands for a word character, # for "a digit
# follows". Text matched by a look-behind stays, as it names the secret.
_TOKENS = (
    ("anthropic", r"sk-ant-#~{20,}"),
    ("openrouter", r"sk-or-#~{20,}"),
    ("openai", r"sk-(?:(?:proj|svcacct|service|admin|None)-#~{20,}|#[A-Za-z0-9]{20,}(?!~))"),
    ("sk", r"sk-~{20,}"),  # "openai" if it looks random; style sheets have names that begin like this
    ("stripe", r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{24,}={0,2}"),
    ("github", r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}"),
    ("gitlab", r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-~{20,}(?:\.[0-9a-z]{2,9}){0,2}"),
    ("slack", r"(?:xox[a-z]-|xapp-[0-9]-)#~{10,}"),
    ("aws", r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?!~)|ABSK[A-Za-z0-9+/]{80,}={0,2}"),
    ("google", r"AIza~{32,}|GOCSPX-~{20,}|(?<=ya29\.)~[A-Za-z0-9_.-]{19,}|(?<=1//)0~{40,}"),
    ("telegram", r"(?<=[0-9]{6}:)#(?=[a-z0-9_-]*[A-Z])(?=[A-Z0-9_-]*[a-z])~{33,37}(?!~)"),
    ("npm", r"npm_[A-Za-z0-9]{30,}"),
    ("pypi", r"pypi-A~{40,}"),
    ("twilio", r"SK[0-9a-f]{32}(?!~)"),
    ("huggingface", r"(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    ("jwt", r"eyJ~{10,}\.(?:eyJ~{6,}\.~*|~*\.~{8,}\.~{8,}\.~{10,})"),
    ("discord", r"[MNO]#~{22,27}\.~{6}\.~{27,}"),
    ("sendgrid", r"(?<=SG\.)~{20,24}\.~{39,50}"),
    ("vault", r"(?<=hv[sb]\.)~{24,}"),
    ("age", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    ("atlassian", r"ATATT3~{50,}(?:=[0-9A-F]{8})?"),
    ("databricks", r"dapi[0-9a-f]{32}"),
    ("digitalocean", r"do[opr]_v1_[0-9a-f]{60,}"),
    ("elevenlabs", r"sk_[0-9a-f]{40,}"),
    ("grafana", r"glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}"),
    ("groq", r"gsk_[A-Za-z0-9]{40,}"),
    ("linear", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}"),
    ("mailgun", r"key-#[0-9a-z]{32}(?!~)|[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}(?!~)"),  # the second: 50 long
    ("notion", r"ntn_[A-Za-z0-9]{40,}"),
    ("nvidia", r"nvapi-~{40,}"),
    ("perplexity", r"pplx-[A-Za-z0-9]{40,}"),
    ("postman", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    ("replicate", r"r8_[A-Za-z0-9]{30,}"),
    ("shopify", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    ("tavily", r"tvly-#~{24,}"),
    ("xai", r"xai-[A-Za-z0-9]{60,}"),
)

# Names whose value is a secret: the last word of the name.
_NAMES = (
    ("password", rb"pass(?:w(?:or)?d|phrase|code)?"),
    ("password", rb"pwd"),
    ("secret", rb"secret"),
    ("token", rb"token"),
    ("api-key", rb"key(?:_base)?"),
    ("basic", rb"auth"),
)
# A key is a secret only after these words: a plain key, a primary key or a cache key is none.
KEY_OWNERS = tuple(
    "api app access secret private auth encryption encrypt signing master account shared subscription admin hmac security"
    " storage service".split()
)
SPOKEN_OWNERS = ("api ", "access ", "secret ")  # "my API key: …", but not "the signing key: <id>"
_EXAMPLES = ("password", "passwd", "pass", "pwd", "pw", "secret", "token")
_NAMING = (*_EXAMPLES, "key")
CURSORS = ("page", "next", "continuation", "sync", "cursor", "cancellation")  # tokens that only mark a place
# Words in a secret's position that are no secrets.
NO_VALUES = frozenset(
    "password passwd passphrase secret token required optional string text varchar input field hidden masked redacted empty"
    " unset default example sample changeme changeit replaceme placeholder undefined unknown invalid incorrect missing correct"
    " wrong disabled enabled prompt plaintext plain bcrypt argon scrypt sha256 sha512 base64 utf8 aes128 aes256 true false"
    " none null uint8 uint16 uint32 uint64 int32 int64".split()
)
# Programs with a password among their arguments, and the options in front of it.
_OPTIONS = {
    "curl": r"(?:-[a-zA-Z]{0,8}[uU][ \t]*|--(?:proxy-)?user(?:[ \t]+|=))",
    "mysql": "(?:-p|--password=)",
    "mariadb": "(?:-p|--password=)",
    "redis-cli": r"(?:-a|--pass)[ \t]+",
    "sshpass": r"-p[ \t]*",
}
LONGEST_COMMAND = 2000  # characters of a command, across continued lines
# Words of which one stands in front of a password in a sentence, in six languages, each with its end.
_TOLD = (
    (b"pass", rb"(?:wor[dt]|phrase|code|e(?<=mot de passe))"),
    (b"contrase", rb"(?:\xf1|\\{1,7}u00f1)a"),
    (b"senha", rb""),
)
_HASHES = ("argon", "bcrypt", "scrypt", "pbkdf", "sha", "md5")  # "the password is argon2id"
ATTRIBUTES = frozenset("path expires max-age domain samesite version priority comment".split())  # of a Set-Cookie
LOGINS = ("sess", "sid", "auth", "token", "csrf", "xsrf", "jwt", "login", "remember")  # in names of cookies

# The first characters of a run may belong to an escape (a backslash and n, or u0041; %3D), a colour code or mark-up. The kind's
# group is empty and at the end: so a shape begins with its literal, and one that can't match costs nothing.
_BEFORE = r"(?:(?<=\\)(?:u~{4}|~)|(?<=%)~~|(?<=[\[;])~{0,3}?m)?+[_-]*+()"
_SHAPES = _BEFORE + "(?:" + "|".join(f"(?:{shape})(?P<{kind}>)" for kind, shape in _TOKENS) + ")"
TOKEN = re.compile(_SHAPES.replace("#", "(?=~*?[0-9])").replace("~", "[A-Za-z0-9_-]"))
_HOOK = re.compile(r"hooks(?:\.slack\.com/(?:services|workflows|triggers)|/[0-9]{15,21})/([A-Za-z0-9/_-]{20,200})")
_BEARER = re.compile(r"earer[ \t]{1,4}([A-Za-z0-9._~+/-]{16,}=*)")
HEADER = re.compile(
    rb"authorization(?:\\{0,7}[\"'])?\]?[ \t]{0,4}[:=,][ \t]{0,4}(?:f?\\{0,7}[\"'`])?"
    rb"(?:(bearer|basic|token|bot|apikey|key|oauth)[ \t]{1,4})?([a-z0-9][a-z0-9._~+/-]{5,}=*)"
)
_URL = re.compile(r"://([^\s/?#:@\"'`\\<>()\[\]]{0,128}):([^\s/?#\"'`\\<>()]{1,256})@(?=[\w\[])")
KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_GAP = r"(?:[\s\"',]|\+(?=[\s\"'])|\\{1,8}[nrt\"']){0,200}+"
_ARMOUR = r"(?:[A-Z][A-Za-z-]{2,20}+: [^\n\"\\]{0,120}+(?:\n|\\{1,8}n)" + _GAP + "){0,6}+"
KEY_PIECE = re.compile(_GAP + _ARMOUR + r"((?:[A-Za-z0-9+/]|\\/){16,}={0,2})")
KEY_REST = re.compile(_GAP + r"(=?(?:[A-Za-z0-9+/]|\\/){1,15}={0,2})" + _GAP + "-----END")
_VALUE_FOLLOWS = (
    rb"[0-9]{0,2}(\\{0,7}[\"'`])?\]?[ \t]{0,8}"
    # `: str =`, but not as prose might continue, or one of the plain signs
    rb"(:[ \t]{0,4}[a-z_][a-z_.]{0,30}(?:\[[a-z_., |]{0,40}\])?(?: ?\| ?none)?[ \t]{0,4}="
    rb"(?=[ \t]{0,4}[rbfu]{0,2}\\{0,7}[\"'])|:=|=>|={1,3}|:(?!:))[ \t]{0,8}"
)
ASSIGNMENTS = tuple((kind, re.compile(b"(" + word + b")" + _VALUE_FOLLOWS)) for kind, word in _NAMES)
QUOTE = re.compile(r"([rbfuRBFU]{0,2})(\\{0,7}[\"'`])")
ENDS = {quote: re.compile(rf"(\\*){quote}|\n") for quote in "\"'`"}
BARE = re.compile(r"[^\s\"'`\\,;<>(){}\[\]|&]{1,4096}")
BARE_LINE = re.compile(r"[^\s\"'`\\;|<>]{1,4096}(?<![,)&}\]])")
PLACEHOLDER = re.compile(
    r"[$@]\w+$|[{(<\[].*[})>\]]$|\$[({]|%[({sdrv]|%\w+%$|\*\*|\.\.|your"  # $VAR, <key>, {x}, %s, ***, …
    r"|[\^~<>=v]{0,2}[0-9]+(?:\.[0-9]+)+[\w.+-]*$|(?:0x|#)[0-9a-f]{3,8}$|[a-z_][\w.]*[(\[]"  # 1.2, 0xff, f(
    r"|(?:my|the|some|insert|enter|replace|put|example|sample|dummy|fake|placeholder|change|redacted|none"
    r"|null|nil|undefined|true|false|required|optional|string|todo|tbd|op|vault|arn|file|env|os\.environ"
    r"|process\.env|secrets?\.|vars\.)(?![A-Za-z0-9])|change[_-]?(?:me|this|it)\b"
    r"|.*?(?:\.\.\.|…|\*\*\*|xxxx|\$\{|\{\{|\{[a-z_][\w.]*\}|%\(|<[a-z_ -]+>|`|::)",
    re.IGNORECASE,
)
# In JSON, \n is a line break.
PROGRAMS = {
    word: (
        re.compile(
            rf"{word}(?:(?<![\w.-]{word})|(?<=\\[nt]{word}))(?:-?(?:dump|admin|import|check|show|slap))?(?:\.exe)?(?=[ \t])"
        ),
        re.compile(rf"[ \t]{option}(?=[^\s-])"),
    )
    for word, option in _OPTIONS.items()
}
ANY_OPTION = re.compile(
    r"-(?:(?<=[ \t]-)(?:[a-zA-Z]{0,8}[uU]|[pa])|-(?:[a-z]{1,20}-)?(?:user|pass))"
)  # one of these, or below
# A line break ends a command unless a backslash stands before it; in JSON that is \n, and \\\n if continued.
COMMAND_END = re.compile(r"(?<!\\)(?:\n|\\{1,2}n)|&&|\|\||\|[ \t]|;(?=[\s\\]|$)")
ANY_PASSWORD = re.compile(r"--(?:[a-z]{1,20}-)?pass(?:word|wd|phrase)?[ \t]{1,4}(?=[^\s-])")
_BETWEEN = r"(?:\s|\\{1,7}[nrt]){1,8}"
_NETRC = re.compile(
    rf"machine{_BETWEEN}([^\s\"'\\]{{1,200}}){_BETWEEN}login{_BETWEEN}[^\s\"'\\]{{1,200}}{_BETWEEN}"
    rf"(?:account{_BETWEEN}[^\s\"'\\]{{1,200}}{_BETWEEN})?password{_BETWEEN}([^\s\"'\\]{{1,200}})"
)
COOKIES = re.compile(
    r"ookie(?<=[Cc]ookie)(?:(?<=--cookie)[ \t=]|(?:\\{0,7}[\"'])?[ \t]{0,4}:)[ \t]{0,4}(?:\\{0,7}[\"'])?"
)
COOKIE = re.compile(r"[ ]?([\w.!#$%&*+^|~-]{1,64})(?:=([^;\s\"'\\]{0,4096}))?[^;\n\"'\\]{0,64}(;?)")
_TELLS = (
    rb"(?:[ \t]{1,4}(?:for|of|to|on|f\xfcr|von|pour|de|para|per)[ \t][^\n.,:;?!\"\\]{1,40}?)?"
    rb"[ \t]{1,4}(?:is|was|ist|war|lautet|est|es|\xe9|\xe8|e|\\{1,7}u00e[89])"
    rb"(?:[ \t]{1,4}(?:now|still|set to|jetzt))?[ \t]?:?[ \t]{1,4}"
)
TOLD = tuple((word, re.compile(word + rest + _TELLS)) for word, rest in _TOLD)
SAID = re.compile(r"[^\s\"'`\\<>()\[\]{},;|]{4,128}(?<![.:?])")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:(?:\.|->)[A-Za-z_][A-Za-z0-9_]*)*[?!.:]?$")
_NAME_PARTS = re.compile(r"[A-Z]*[a-z0-9]+|[A-Z0-9]+")  # of snake_case and camelCase
_TECHNICAL = re.compile(
    r"(?<![a-z])(?:oauth|sha|md|base|utf|u?int|float|aes|rsa|ed|x|http|ipv|h|mp|es|p|s|ec|k|i|a|l|v|vp|web|py|rc|r|t"
    r"|eth|alpha|beta)[0-9]+(?:[sn](?![a-z]))?",
    re.IGNORECASE,
)
_INSIDE = re.compile(r"[A-Za-z][0-9]+[A-Za-z]|[A-Za-z]{5}[0-9]$|[A-Za-z0-9][@#$^!~][A-Za-z0-9]")
_PIECES = re.compile(r"[A-Za-z0-9]+")
_SWITCH = re.compile(r"(?<=[0-9])[A-Za-z]|(?<=[A-Za-z])[0-9]|(?<=[a-z])[A-Z]")


def is_given(value: str) -> bool:
    """Whether a value in a password's place is one, and not an example or a placeholder."""
    if MASK in value or value.lower() in _EXAMPLES or len(set(value)) < 2:
        return False
    return not PLACEHOLDER.match(value)


def is_basic(value: str) -> bool:
    """Whether `value` is the base64 of user:password, which "authentication" is not."""
    try:
        return b":" in a2b_base64(value + "=" * (-len(value) % 4), strict_mode=True)
    except ValueError:
        return False


def looks_chosen(value: str) -> bool:
    """Whether a bare word is a password rather than a word of the sentence: digits or special characters are in it."""
    if value.isdigit():
        return len(value) >= 6
    if "://" in value or value.lower().startswith(_HASHES) or (_IDENTIFIER.match(value) and _names_itself(value)):
        return False
    rest = _TECHNICAL.sub("", value).lstrip("0123456789")  # 2FA-protected, 8-character
    if sum(c.isalpha() for c in rest) < 3:
        return False
    special = any(c in "@#$%^*!~=" for c in rest[1:-1])
    return _has_digit(rest) or special or (value.isalpha() and _switches(value) >= 3)


def is_secret(kind: str, style: str, name: str, value: str) -> bool:
    """Whether a value is a secret, by its name, its notation and its shape."""
    lower = value.lower().rstrip("?!")
    if style == "code" or len(set(lower)) < 3 or lower in NO_VALUES:
        return False
    if PLACEHOLDER.match(value) or (value.startswith(("/", "~/", "./", "../")) and not _has_digit(value)):
        return False
    if style == "environment":
        return _is_secret_of_environment(kind, name, value)
    if style == "bare":
        return _is_bare_secret(kind, value)
    if style == "quoted" and value[0] in ",:]}":
        return False  # the quote closed a string of JSON: this text is between two strings
    return not any(c.isspace() for c in value) and _is_quoted_secret(kind, value)


def _is_quoted_secret(kind: str, value: str) -> bool:
    if kind == "basic":
        return len(value) >= 8 and not value.islower() and is_basic(value)
    if kind != "password":
        enough = _mixed(value) or _switches(value) >= (2 if len(value) >= 8 else 3)
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


def _is_bare_secret(kind: str, value: str) -> bool:
    """Without quotes: a secret, and not code, a type, a number or a word of prose."""
    identifier = _IDENTIFIER.match(value)
    if kind != "password":
        dotted = identifier is not None and "." in value
        if kind == "basic" or is_random(value, strict=dotted) or _mixed(value):
            return kind != "basic"
        return len(value) >= 6 and not dotted and _is_chosen(value)
    if value.isdigit():
        return len(value) >= 6
    if identifier:
        return len(value) >= 4 and "." not in value.rstrip(".:") and _has_digit(value) and not _names_itself(value)
    peculiar = any(c in "0123456789@#$%^*!~" for c in value[1:])
    return peculiar and len(value) >= 4 and any(c.isalpha() for c in value)


def _names_itself(value: str) -> bool:
    """Whether an identifier says what it holds, as new_password2 and dbPassword1 do and hunter2secret does not."""
    for word in _NAME_PARTS.findall(value):
        plain = word.rstrip("0123456789").lower()
        if any(not _has_digit(plain.replace(example, "")) for example in _NAMING if example in plain):
            return True
    return False


def _is_chosen(value: str) -> bool:
    """Whether this looks like a chosen password: hunter2secret or S3cure!Pass, but no word that usually has digits.

    Many other words stand in front of a token or a key (oauth2, v1beta1, k8s-name, token2), so it takes a digit inside
    a word, or one of the special characters common in passwords.
    """
    if _IDENTIFIER.match(value) and _names_itself(value):
        return False
    rest = _TECHNICAL.sub("", value)
    return bool(_INSIDE.search(rest)) and sum(c.isalpha() for c in rest) >= 4


def _mixed(value: str) -> bool:
    """Whether letters and digits are mixed as in abcd1234efgh, which no name in code is."""
    digits = sum("0" <= c <= "9" for c in value)
    return value.isalnum() and digits >= 4 and len(value) >= max(12, digits + 4)


def _has_digit(value: str) -> bool:
    return any("0" <= c <= "9" for c in value)


def is_opaque(value: str) -> bool:
    """Whether the value of a bearer header is a credential: "authentication" and "YOUR_TOKEN" are not."""
    return len(value) >= 8 and (_has_digit(value) or _switches(value) >= 3)


def _switches(value: str) -> int:
    """How often a value changes between letters, digits and capitals: random text does so often."""
    return len(_SWITCH.findall(value))


def is_random(value: str, *, strict: bool = False) -> bool:
    """Whether a value looks random rather than written by a person."""
    size = sum(map(len, _PIECES.findall(value)))
    return size >= 10 and _has_digit(value) and _switches(value) >= max(4, size // (4 if strict else 6))


# Secrets in a known place: a text that is there, the kind, the pattern, whose last group is the value, and a test.
Found = re.Match[str]
PLACES: tuple[tuple[str, str, re.Pattern[str], Callable[[Found], bool]], ...] = (
    ("hooks", "webhook", _HOOK, lambda found: True),
    ("earer", "bearer", _BEARER, lambda found: is_opaque(found[1]) and not PLACEHOLDER.match(found[1])),
    ("@", "password", _URL, lambda found: is_given(found[2])),
    ("machine", "password", _NETRC,
     lambda found: is_given(found[2]) and ("." in found[1] or found[1] == "localhost" or looks_chosen(found[2]))),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- searching

Span = tuple[int, int, str]  # start, end, kind
_LONGEST = 4096  # characters of a value in quotes
_ROUNDS = 8  # a mask rarely uncovers another secret; this bounds the work if it does
# All characters a token can be made of become the same letter, so that one substring search finds long runs.
_RUN = b"w" * 20
_WORD_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_WORDS = bytes(ord("w") if chr(c) in _WORD_CHARACTERS else ord(" ") for c in range(256))


def redact(text: str) -> str:
    """Return `text` with every secret in it replaced by `[masked:<kind>]`, and everything else unchanged.

    The name, user, host or header in front of the secret stays. JSON stays JSON, redacting twice
    changes nothing more, and text without a secret comes back as the very same object. Any string is accepted.
    """
    for _ in range(_ROUNDS):
        spans = _find(text)
        if not spans:
            break
        text = _masked(text, spans)
    return text


def _find(text: str) -> list[Span]:
    """The places of secrets in a text; of two that overlap the earlier in the list is the better description."""
    raw = text.encode("latin-1", "replace")  # one byte a character, for any text
    low, spans = raw.lower(), list[Span]()
    if "PRIVATE KEY" in text:
        spans += _private_keys(text)
    spans += _tokens(text, raw)
    for known, kind, pattern, is_secret in PLACES:
        if known in text:
            spans += [(*m.span(m.lastindex or 0), kind) for m in pattern.finditer(text) if is_secret(m)]
    if b"authorization" in low:
        spans += _headers(text, low)
    spans += _assignments(text, low)
    if ANY_OPTION.search(text):
        spans += _arguments(text)
    if b"pass" in low or not text.isascii() or b"\\u00" in low:
        spans += _sentences(text, low)
    if "ookie" in text:
        spans += _cookies(text)
    return spans


def _masked(text: str, spans: Iterable[Span]) -> str:
    """The text with the spans masked, each character at most once."""
    taken, chosen = bytearray(len(text)), [(0, 0, "")]
    for start, end, kind in spans:
        if 1 not in taken[start:end]:
            taken[start:end] = b"\1" * (end - start)
            chosen.append((start, end, kind))
    chosen.sort()
    pieces = [f"{text[before[1] : start]}{MASK}{kind}]" for before, (start, _, kind) in pairwise(chosen)]
    return "".join((*pieces, text[chosen[-1][1] :]))


def _tokens(text: str, raw: bytes) -> Iterator[Span]:
    """Tokens of a known shape. Only the start of a run is tried, so the work is linear."""
    words = raw.translate(_WORDS) + b" "
    find, match = words.find, TOKEN.match  # this loop runs for every long word of source code
    at = find(_RUN)
    while at >= 0:
        end = find(b" ", at + 20)
        if (m := match(text, at)) and not text.startswith("+", m.end()):  # "+": we are inside of base64
            kind, token = str(m.lastgroup), text[m.start(1) : m.end()]
            if "xxxxxxxx" not in token.lower() and (kind != "sk" or is_random(token)):
                yield m.start(1), m.end(), "openai" if kind == "sk" else kind
                end = max(end, m.end())
        at = find(_RUN, end)


def _private_keys(text: str) -> Iterator[Span]:
    """The base64 between the marks of a private-key block, also cut short, escaped, or one string a line."""
    for begin in KEY_BEGIN.finditer(text):
        start = stop = 0
        at = begin.end()
        while piece := KEY_PIECE.match(text, at) or KEY_REST.match(text, at):
            first, at = piece.span(1)
            if start and ('"' in text[stop:first] or "'" in text[stop:first]):
                yield start, stop, "private-key"
                start = 0
            start, stop = start or first, at
        if start:
            yield start, stop, "private-key"


def _headers(text: str, low: bytes) -> Iterator[Span]:
    """The text after the scheme of an Authorization header."""
    for m in HEADER.finditer(low):
        scheme, (start, end) = (m[1] or b"bearer").decode(), m.span(2)
        value = text[start:end]
        if scheme == "basic":
            is_secret = is_basic(value)
        else:
            is_secret = is_opaque(value) if m[1] else len(value) >= 16 and is_random(value)
        if is_secret and not PLACEHOLDER.match(value):
            yield start, end, scheme if scheme in ("basic", "bearer") else "token"


def _arguments(text: str) -> Iterator[Span]:
    """Passwords among the arguments of a command: curl -u ada:…, mysql -p…, redis-cli -a …, sshpass -p …"""
    found = ((word, m) for word, (program, _) in PROGRAMS.items() if word in text for m in program.finditer(text))
    commands = sorted((m.start(), m.end(), word) for word, m in found)
    # No command reaches into the next one: the work is linear.
    for (_, begin, word), (last, *_) in pairwise([*commands, (len(text), 0, "")]):
        last = min(last, begin + LONGEST_COMMAND)
        over = COMMAND_END.search(text, begin, last)
        for option in PROGRAMS[word][1].finditer(text, begin, over.start() if over else last):
            start, end = _argument(text, option.end(), BARE_LINE) or (0, 0)
            if word == "curl":
                start = text.find(":", start, end) + 1 or end
            if is_given(text[start:end]):
                yield start, end, "password"
    for option in ANY_PASSWORD.finditer(text):  # of any program
        yield from _sentence_value(text, option.end(), BARE_LINE)


def _argument(text: str, at: int, bare: Pattern[str]) -> tuple[int, int] | None:
    """The start and end of the value that begins here, without its quotes; `bare` is the shape of one that has none."""
    if opening := QUOTE.match(text, at):
        return None if opening[1] else _quoted(text, opening)
    return m.span() if (m := bare.match(text, at)) else None


def _cookies(text: str) -> Iterator[Span]:
    """The values of a Cookie or Set-Cookie header, but not those that are settings (theme=dark)."""
    at = 0
    for header in COOKIES.finditer(text):
        more = ";" if header.end() >= at else ""  # else it was looked at as part of the one before
        at = max(at, header.end())
        while more and (m := COOKIE.match(text, at)):
            at, name, value, more = m.end(), m[1].lower(), m[2] or "", m[3]
            enough = 6 if any(word in name for word in LOGINS) else 16
            is_login = len(value) >= enough and is_opaque(value) and name not in ATTRIBUTES
            if is_login and is_given(value):
                yield *m.span(2), "cookie"


def _sentences(text: str, low: bytes) -> Iterator[Span]:
    """Passwords told in a sentence: my password is …, das Passwort lautet …"""
    for m in (m for word, pattern in TOLD if word in low for m in pattern.finditer(low)):
        yield from _sentence_value(text, m.end(), SAID)


def _sentence_value(text: str, at: int, bare: Pattern[str]) -> Iterator[Span]:
    """The value in a place where a sentence names a password, unless it is a word of a sentence, an example or a placeholder."""
    start, end = _argument(text, at, bare) or (at, at)
    value = text[start:end]
    if start > at:  # in quotes
        is_word = len(value) >= 4 and not any(c.isspace() for c in value) and value[0] not in ",:]}"
        is_one = is_word and value.lower().rstrip("?!.") not in NO_VALUES
    else:
        is_one = looks_chosen(value.rstrip("!"))
    if is_one and is_given(value):
        yield start, end, "password"


def _assignments(text: str, low: bytes) -> Iterator[Span]:
    """Values assigned to a secret's name, quoted or bare."""
    for kind, pattern in ASSIGNMENTS:
        at = 0
        while m := pattern.search(low, at):
            start, at = m.start(), m.end()
            owner = _owner(text, start)
            if text.endswith(MASK, 0, start - len(owner)) or not _is_telling(kind, text, owner, m):
                continue
            name = owner + text[start : m.end(1)]
            if found := _value(text, name, m):
                style, begin, at = found  # a=a=a=…: each value is looked at once
                value = text[begin:at]
                if is_secret(kind, style, name, value[:256]) and MASK not in value:
                    yield begin, at, "aws" if kind == "api-key" and "aws" in name.lower() else kind


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
        return word.endswith(KEY_OWNERS) if owner else before.endswith(SPOKEN_OWNERS)
    if kind == "token":
        return not word.endswith(CURSORS)
    if kind == "basic":
        return not word
    if m[1] == b"pass":  # dbPass, DB_PASS, db.pass; not minipass, bypass
        return not owner or owner[-1] in "_-." or text[m.start()] == "P"
    return True


def _value(text: str, name: str, m: Match[bytes]) -> tuple[str, int, int] | None:
    """How the value behind a name is written, where it starts and where it ends."""
    if opening := QUOTE.match(text, m.end()):
        found = _quoted(text, opening)
        same = m[2] is not None and m[2].decode() == opening[2]
        return found and ("json" if same else "quoted", *found)
    if m[2] is not None:
        return None  # behind a quoted name: a number in JSON, or code
    spaced = b" " in m[0] or b"\t" in m[0]
    environment = m[3] == b"=" and not spaced and name.isupper()
    bare = (BARE_LINE if environment else BARE).match(text, m.end())
    if bare is None:
        return None
    start, end = bare.span()
    if environment:
        return "environment", start, end
    if text.startswith(("(", "["), end) or (spaced and name.lower() == "pass"):  # PASS: test_login
        return "code", start, end
    return "bare", start, start + len(bare[0].rstrip(".:"))


def _quoted(text: str, opening: Match[str]) -> tuple[int, int] | None:
    """The start and end of the string that opens here. None if it does not close, or is made by code.

    A quote inside JSON inside JSON has 1, 3 or 7 backslashes before it; one that is part of the string has
    more. Escapes are taken whole and no quote of an outer level is passed, so the JSON around stays JSON.
    """
    depth, quote, start = len(opening[2]) - 1, opening[2][-1], opening.end()
    for m in ENDS[quote].finditer(text, start, start + _LONGEST):
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
