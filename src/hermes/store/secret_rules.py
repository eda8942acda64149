"""The rules of `redact`: what secrets look like, and how they differ from names, examples and placeholders.

The shapes of providers' tokens are facts, collected from their documentation and from the rules of public secret scanners.
Patterns begin with a literal wherever they can: it is searched for at C speed.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable

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
_WORDS = re.compile(r"[A-Z]*[a-z0-9]+|[A-Z0-9]+")  # of snake_case and camelCase
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
    for word in _WORDS.findall(value):
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
