"""Secrets are masked and nothing else is: at least 60 of each, and what must hold for any text.

No secret here is real, and none stands in this file in one piece: each is put together when the test runs, so that
scanners of the repository have nothing to find.
"""

from __future__ import annotations

import base64
import json
import random
import string
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.store.redact import redact

ALNUM = string.ascii_letters + string.digits
WORD = ALNUM + "_-"
HEX = "0123456789abcdef"
BASE32 = string.ascii_uppercase + "234567"
_dice = random.Random(20240607)


def lot(alphabet: str, size: int) -> str:
    """A random string with at least one digit, as a provider would draw it."""
    while True:
        drawn = "".join(_dice.choice(alphabet) for _ in range(size))
        if any(c.isdigit() for c in drawn) and drawn[-1].isalnum() and drawn[0].isalnum():
            return drawn


def b64(size: int) -> str:
    return base64.b64encode(_dice.randbytes(size)).decode()


def b64url(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def jwt() -> str:
    head = b64url('{"alg":"HS256","typ":"JWT"}')
    return ".".join((head, b64url('{"sub":"1234567890","name":"Jane"}'), lot(WORD, 43)))


def pem(lines: int, newline: str) -> str:
    return newline.join([b64(48) for _ in range(lines)] + [b64(10)])


def marks(kind: str, newline: str = "\n") -> str:
    edge = "-" * 5
    name = kind + "PRIVATE " + "KEY"
    return f"{edge}BEGIN {name}{edge}{newline}§{newline}{edge}END {name}{edge}"


SK = "s" + "k-"
ANT, OR, PROJ, SVC = SK + "ant-", SK + "or-v1-", SK + "proj-", SK + "svcacct-"
GH, GL = "g" + "h", "g" + "l"
XOX, XAPP = "xo" + "x", "xa" + "pp-"
BASIC = base64.b64encode(b"aladdin:opensesame").decode()

# kind, the text with § where the secret stands, the secret
SECRETS: list[tuple[str, str, str]] = [
    ("openai", "export OPENAI_API_KEY=§", SK + lot(ALNUM, 20) + "T3Blbk" + "FJ" + lot(ALNUM, 20)),
    ("openai", "client = OpenAI(api_key='§')", PROJ + lot(WORD, 58) + "T3Blbk" + "FJ" + lot(WORD, 58)),
    ("openai", "the service account's key is § and works", SVC + lot(WORD, 120)),
    ("openai", "DEEPSEEK: §.", SK + lot(HEX, 32)),
    ("anthropic", 'ANTHROPIC_API_KEY="§"', ANT + "api03-" + lot(WORD, 93) + "AA"),
    ("anthropic", "my token (§) expired", ANT + "oat01-" + lot(WORD, 93) + "AA"),
    ("openrouter", "curl -H 'X-Key: §' https://example.org", OR + lot(HEX, 64)),
    ("aws", "aws_access_key_id = §", "AK" + "IA" + lot(BASE32, 16)),
    ("aws", '{"AccessKeyId": "§", "Status": "Active"}', "AS" + "IA" + lot(BASE32, 16)),
    ("aws", "aws_secret_access_key = §\nregion = eu-central-1", lot(ALNUM, 20) + "/" + lot(ALNUM, 19)),
    ("aws", "AWS_SECRET_ACCESS_KEY=§", lot(ALNUM, 12) + "+" + lot(ALNUM, 27)),
    ("google", "https://maps.googleapis.com/maps/api/js?key=§&v=3", "AI" + "zaSy" + lot(WORD, 33)),
    ("google", "gcloud auth print-access-token\nya29.§\n$", "a0Af" + lot(WORD, 120)),
    ("google", "GOOGLE_CLIENT=§", "GOC" + "SPX-" + lot(WORD, 28)),
    ("github", "git clone https://§@github.com/acme/site.git", GH + "p_" + lot(ALNUM, 36)),
    ("github", "Authorization: token §", GH + "o_" + lot(ALNUM, 36)),
    ("github", "gho/ghu/ghs: §, next", GH + "s_" + lot(ALNUM, 36)),
    ("github", "refresh §", GH + "r_" + lot(ALNUM, 36)),
    ("github", "GITHUB_TOKEN: §", "github" + "_pat_" + lot(ALNUM, 22) + "_" + lot(ALNUM, 59)),
    ("gitlab", "curl --header 'PRIVATE-TOKEN: §' https://gitlab.example.org", GL + "pat-" + lot(WORD, 20)),
    ("gitlab", "deploy with §", GL + "dt-" + lot(WORD, 20)),
    ("gitlab", "gitlab-runner register --token §", GL + "rt-" + lot(WORD, 20)),
    ("slack", "SLACK_BOT_TOKEN=§", f"{XOX}b-{lot(string.digits, 12)}-{lot(string.digits, 12)}-{lot(ALNUM, 24)}"),
    ("slack", "user token §!", f"{XOX}p-{'-'.join(lot(string.digits, 11) for _ in range(3))}-{lot(HEX, 32)}"),
    ("slack", "app-level: §", f"{XAPP}1-A{lot(BASE32, 10)}-{lot(string.digits, 13)}-{lot(HEX, 64)}"),
    ("webhook", "https://hooks.slack.com/services/§", f"T{lot(BASE32, 8)}/B{lot(BASE32, 8)}/{lot(ALNUM, 24)}"),
    ("telegram", "https://api.telegram.org/bot123456789:§/getMe", "AA" + "H" + lot(WORD, 32)),
    ("telegram", "TELEGRAM_BOT=6012345678:§", "AA" + "E" + lot(WORD, 32)),
    ("stripe", "stripe.api_key = '§'", "s" + "k_live_" + lot(ALNUM, 24)),
    ("stripe", "restricted: §", "r" + "k_live_" + lot(ALNUM, 24)),
    ("stripe", "STRIPE_WEBHOOK=§", "wh" + "sec_" + lot(ALNUM, 32)),
    ("npm", "//npm.example.org/:_authToken=§", "np" + "m_" + lot(ALNUM, 36)),
    ("pypi", "twine upload -u __token__ -p § dist/*", "py" + "pi-AgEI" + lot(WORD, 130)),
    ("twilio", "api key sid §", "S" + "K" + lot(HEX, 32)),
    ("token", "TWILIO_AUTH_TOKEN=§", lot(HEX, 32)),
    ("huggingface", "huggingface-cli login --token §", "h" + "f_" + lot(string.ascii_letters + "1", 34)),
    ("discord", "Authorization: Bot §", f"M{lot(ALNUM, 23)}.{lot(WORD, 6)}.{lot(WORD, 38)}"),
    ("sendgrid", "smtp password SG.§", f"{lot(WORD, 22)}.{lot(WORD, 43)}"),
    ("bearer", "curl -H 'Authorization: Bearer §' https://api.example.org/v1", lot(ALNUM, 40)),
    ("bearer", '{"headers": {"Authorization": "Bearer §", "Accept": "*/*"}}', lot(ALNUM, 12)),
    ("bearer", "the call was made with bearer §", lot(ALNUM, 32)),
    ("basic", "> Authorization: Basic §\n> Accept: */*", BASIC),
    ("basic", '{"auths": {"images.example.org": {"auth": "§"}}}', BASIC),
    ("jwt", "Set-Cookie: session=§; HttpOnly", jwt()),
    ("jwt", '{"access_token": "§", "expires_in": 3600}', jwt()),
    ("private-key", marks("RSA "), pem(6, "\n")),
    (
        "private-key",
        json.dumps({"type": "service_account", "private_key": marks("") + "\n"}, ensure_ascii=False),
        pem(4, "\\n"),
    ),
    ("private-key", marks("OPENSSH ").partition("\n-----END")[0], pem(3, "\n").rpartition("\n")[0]),  # cut short
    ("password", "DATABASE_URL=postgres://app:§@db.internal:5432/app", lot(ALNUM, 16)),
    ("password", "redis://:§@cache:6379/0", "p@ss" + "w0rd!"),
    ("password", "DB_PASSWORD=§", "hunt" + "er2"),
    ("password", "MYSQL_ROOT_PASSWORD=§ docker compose up", "corre" + "cthorse"),
    ("password", "  password: §\n  user: root", "S3c" + "ure!Pass"),
    ("password", '{"user": "root", "password": "§", "port": 22}', 'q\\"' + "9\\\\k,x: y".replace(" ", "")),
    ("password", json.dumps({"command": 'mysql --password="§" -e "select 1"'}, ensure_ascii=False), "tr0ub" + "4dor&3"),
    *[("password", f"log in with {name}§ and go on", "hunt" + "er2secret")
      for name in ("password=", "password: ", "passwd = ", "pwd=", "my Password: ", "passphrase=")],
    *[("secret", f"the {name}§.", "hunt" + "er2secret") for name in ("secret=", "client secret: ")],
    ("token", "token=§", "hunt" + "er2secret"),
    ("token", "the bot's token: §, as I said", "S3c" + "ure!Pass"),
    ("api-key", "api_key=§", "hunt" + "er2secret"),
    ("api-key", "my API key: §", "hunt" + "er2secret"),
    ("secret", "CLIENT_SECRET='§'", lot(WORD, 24)),
    ("secret", '{"arguments": "{\\"client_secret\\": \\"§\\"}"}', lot(ALNUM, 20)),
    ("token", 'access_token: str = "§"', lot(ALNUM, 20)),
    ("api-key", '{"api_key": "§", "model": "large"}', lot(ALNUM, 24)),
    ("api-key", "curl -H 'x-api-key: §' https://example.org", lot(HEX, 32)),
]

LOOKALIKES = [
    # hashes, ids and other long strings that are public
    "d41d8cd98f00b204e9800998ecf8427e  empty.txt",
    "commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "request 550e8400-e29b-41d4-a716-446655440000 took 12 ms",
    "images.example.org/alpine@sha256:c5b1261d6d3e43071626931fc004f70149baeba2c8ec672bd4f27761f8e1ad6b",
    '"integrity": "sha512-' + base64.b64encode(bytes(range(64))).decode() + '"',
    "01ARZ3NDEKTSV4RRFFQ69G5FAV is a ULID",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJl3dIeudNqd0DPMRD6OIh65tjkxFNOtGcWI2B8RCkhL me@host",
    "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEVs/o5+uQbTjL3chynL4\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nMIIBtjCCAVugAwIBAgITBmyf1XSXNmY/Owua2eiedgPySjAKBggqhkjOPQ\n-----END CERTIFICATE-----",
    "a file that starts with -----BEGIN PRIVATE KEY----- is a private key",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kg==",
    '{"type": "thinking", "signature": "' + base64.b64encode(bytes(range(200))).decode() + '"}',
    '{"encrypted_content": "gAAAAAB' + base64.urlsafe_b64encode(bytes(range(150))).decode() + '"}',
    "pk_" + "live_51H8xYzAbCdEfGhIjKlMnOpQrStUvWxYz is the publishable key",
    "order prod_NWjs8kKbJWmuuc, price_1MoBy5LkdIwHu7ixZhnattbh, cus_NffrFeUfNV2Hib",
    "google_analytics: UA-12345678-1, G-ABCDEF1234",
    "AC" + "0123456789abcdef0123456789abcdef is a Twilio account",
    "/usr/lib/python3/dist-packages/pip-22.3.1.dist-info/RECORD,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0",
    "go: github.com/pkg/errors v0.9.1 h1:FEBLx1zS214owpjy7qsBeixbURkuhQAwrK5UwLGTwt4=",
    # words that only begin like a token
    "pip install sk-learn-contrib-extras-and-more-things",
    ".sk-toggleable__content-arrow-2x{max-height:0}",
    "npm_config_cache=/tmp/npm npm_package_name_with_a_long_tail=x",
    "https://example.org/pypi-mirror-for-internal-use-2024/simple/",
    "The prefix AKIA marks access keys; AKIAIOSFODNN is too short.",
    "def gh_pages_deploy_to_production_v2(): ...",
    "glpat-tern matching, xoxb-your-token-goes-here",
    "hf_hub_download_with_retries_and_more()",
    "eyJ is how a JWT starts",
    "function eyJhbGciOiJIUzI1NiIsInR5cCI6(a,b){return a.eyJ(b)}",
    "whsec_your_webhook_signing_secret",
    "2024-01-01T00:00:00.000000:AAAAAAAAAAAA and 1700000000:another_long_identifier_of_size_35x",
    # headers in prose and with placeholders
    "Basic authentication is not enough; use Bearer authentication.",
    "WWW-Authenticate: Bearer realm=example, error=invalid_token",
    "Error 401: Bearer token required",
    "Authorization: Bearer <token>",
    'headers={"Authorization": f"Bearer {self.access_token}"}',
    "-H 'Authorization: Bearer $GITHUB_TOKEN_FOR_CI'",
    "Authorization: Basic authentication",
    # URLs without a password
    "https://user@example.org/path and ssh://git@github.com:22/acme/site.git",
    "http://localhost:8080/users/me@example.org",
    "postgres://user:${DB_PASSWORD}@localhost/app",
    "postgres://user:password@localhost/app",
    "mail alice@example.org or see http://127.0.0.1:3000",
    # assignments without a secret
    "API_KEY=<your key>",
    "OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "export TOKEN=$OTHER_TOKEN PASSWORD=${PASSWORD:-}",
    'password = os.environ["DB_PASSWORD"]\ntoken = os.getenv("TOKEN2")',
    "password: changeme\npassword: ********\npassword = None\nPASSWORD=changeme",
    "def login(user: str, password: str, token: str | None = None, api_key: Optional[str] = None) -> Token:",
    "token = parser.next_token()\ntoken=self.tokens[0]\nsecret = hmac.new(key2, msg1)",
    "max_tokens: 4096, tokens=1234, token_count=123456789012, token: 12345678",
    "password: required, min length 8\nPassword: at least 12 characters",
    '{"password": {"type": "string"}, "token": "string", "secret": true, "api_key": null, "pwd": 12345678}',
    '{"next_page_token": "CAUQAA1b2c3d4e5f6g", "token_type": "bearer", "primary_key": "a1b2c3d4e5f6"}',
    '["password=","x1y2z3w4v5",{"secret:":12345678901}, "token=", 1a2b3c4d5e6f]'.replace(", 1a2b3c4d5e6f", ""),
    "PWD=/home/ada/work OLDPWD=/tmp keyboard: us1 monkey=a1b2c3d4e5f6g7",
    'if password == "" or passphrase != "required": raise AuthError(password=password)',
    "PASS: test_login_2 (0.01s)\n# PASS=153 FAIL=2\nbypass: a1b2c3d4",
    "password: required\ntoken: str\nsecret: optional\napi_key: string\npasswd: hidden",
    "password = get_password()\ntoken = make_token2(user1)\nsecret = read2()\npassword = input2.value",
    "password=None, token=null, secret=false, api_key=undefined, passwd=nil",
    "password: {{ vault_password1 }}\ntoken: {{token2}}\nsecret: <% secret3 %>\napi_key=${API_KEY2}",
    "password=$PASS1 token=$TOKEN2 secret=$(cat key2) pwd=%PWD1%",
    "password: ****\npassword: ••••••••\ntoken: ********1234\nsecret=xxxxxxxx1",
    "password: str = Field(min_length=8)\ntoken: Optional[Token2]\nsecret: bytes32\napi_key: SecretStr | None",
    "password=password1, password: new_password2, password=user1_password, password = dbPassword2",
    "token=token2, token: 2fa_token, secret=secret_name_2, api_key=api_key_v2, api_key: key1, token=HTTP2Token",
    "secret: oauth2token\ntoken: v1beta1\ntoken = base64encoded\napi_key: sha256sum\nsecret: k8s-name\ntoken: eth0",
    "token = 1*tchar\npassword: see 1Password\nsecret: t2.micro\ntoken=abc",
    '"minipass": "^7.1.2", "jsonwebtoken": "9.0.2", label_password: "Passwort"',
]  # fmt: skip


def test_the_lists_are_as_long_as_promised() -> None:
    assert len(SECRETS) >= 60
    assert len(LOOKALIKES) >= 60


@pytest.mark.parametrize(("kind", "around", "secret"), SECRETS, ids=[f"{i}-{s[0]}" for i, s in enumerate(SECRETS)])
def test_a_secret_is_masked_and_the_text_around_it_kept(kind: str, around: str, secret: str) -> None:
    text = around.replace("§", secret)
    assert redact(text) == around.replace("§", f"[masked:{kind}]")


@pytest.mark.parametrize(("kind", "around", "secret"), SECRETS, ids=[f"{i}-{s[0]}" for i, s in enumerate(SECRETS)])
def test_a_secret_is_masked_wherever_it_stands(kind: str, around: str, secret: str) -> None:
    line, masked = around.replace("§", secret), around.replace("§", f"[masked:{kind}]")
    prose = "Some words before, ein paar Wörter, 一些文字.\n"
    assert redact(f"{prose}{line}\n{prose}") == f"{prose}{masked}\n{prose}"
    assert redact(json.dumps([prose + line + "\n"])) == json.dumps([prose + masked + "\n"])  # as in a tool call
    twice = json.dumps({"arguments": json.dumps({"text": prose + line})})
    if '"' not in line:  # two levels of escapes around a quoted value keep their own escapes
        assert redact(twice) == json.dumps({"arguments": json.dumps({"text": prose + masked})})
    assert secret not in json.loads(json.loads(redact(twice))["arguments"])["text"]


@pytest.mark.parametrize("text", LOOKALIKES, ids=range(len(LOOKALIKES)))
def test_a_lookalike_is_left_alone(text: str) -> None:
    assert redact(text) is text
    assert redact(f"see:\n{text}\nthanks") == f"see:\n{text}\nthanks"
    assert redact(json.dumps({"content": text})) == json.dumps({"content": text})


def test_text_without_a_secret_comes_back_as_the_same_object() -> None:
    for text in (
        "",
        "Hello, how are you?",
        "def f(x):\n    return x[0] = 'key'\n" * 300,
        "一些文字 " * 500,
        "\ud800\x00",
    ):
        assert redact(text) is text


def test_every_secret_of_a_text_is_masked() -> None:
    lines = [around.replace("§", secret) for _, around, secret in SECRETS]
    redacted = redact("\n".join(lines))
    for _, _, secret in SECRETS:
        assert secret not in redacted
    assert redacted.count("[masked:") == len(SECRETS)


PIECES = st.sampled_from(
    [around.replace("§", secret) for _, around, secret in SECRETS]
    + [secret for _, _, secret in SECRETS]
    + LOOKALIKES
    + [
        "password",
        "token",
        "api_key",
        "secret=",
        "pwd:",
        "=",
        ": ",
        '"',
        "'",
        "\\",
        "\\n",
        "\n",
        "://",
        "@",
        "[masked:",
    ]
    + ["[masked:password]", "]", "Bearer ", "Authorization: ", " ", ",", "a1b2c3d4e5f6", "x", "é", "文", "\ud800"]
)
TEXTS = st.lists(PIECES | st.text(max_size=12), max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(
    "document",
    [
        ["password=", "a1b2c3d4e5f6"],
        ["password='", "b1234x'"],
        ["password=\\'", "b1234x\\'"],
        ["password=\\", 12345678, "x\\"],
        ["{'password':", 12345678, "x"],
        ['{"password":', 12345678, "x"],
        {"token=": "a1b2c3d4e5f6", "secret:": 123456789012},
    ],
)
def test_a_value_does_not_reach_from_one_string_of_json_into_the_next(
    document: Any, separators: tuple[str, str]
) -> None:
    text = json.dumps(document, separators=separators)
    assert json.loads(redact(text)) == document


SECRET_LEAVES = st.sampled_from([around.replace("§", secret) for _, around, secret in SECRETS])
CLEAN_LEAVES = (
    st.sampled_from(LOOKALIKES) | st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a b", "é"])
)
KEYS = st.sampled_from(["content", "text", "password", "api_key", "token", 'a "quoted" key', "secret=", "x\\", "文"])
DOCUMENTS = st.recursive(
    TEXTS | SECRET_LEAVES | CLEAN_LEAVES,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(KEYS, children, max_size=4),
    max_leaves=12,
)


def leaves(document: Any) -> list[Any]:
    if isinstance(document, dict):
        return [leaf for key, value in document.items() for leaf in [key, *leaves(value)]]
    if isinstance(document, list):
        return [leaf for value in document for leaf in leaves(value)]
    return [document]


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, st.booleans())
def test_json_stays_json_with_the_same_shape(document: Any, escaped: bool) -> None:
    read = json.loads(redact(json.dumps(document, ensure_ascii=escaped)))
    before, after = leaves(document), leaves(read)
    assert len(after) == len(before)
    assert [type(x) for x in after] == [type(x) for x in before]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["content", "note", "文"]), SECRET_LEAVES | CLEAN_LEAVES), max_size=6))
def test_leaves_without_a_secret_are_equal_after_the_document_is_redacted(pairs: list[tuple[str, Any]]) -> None:
    document = [{key: value} for key, value in pairs]
    for before, after in zip(leaves(document), leaves(json.loads(redact(json.dumps(document)))), strict=True):
        assert after == (redact(before) if isinstance(before, str) else before)


@pytest.mark.parametrize(
    "piece",
    ["a", "eyJ", "eyJhbGciOiJIUzI1NiJ9.", "=:", "://", "://a:", "password=", 'password="', "token: ", "AKIA", "-",
     "@", "Bearer ", "Authorization: Bearer a", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----Comment: ",
     "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq", "\\", '\\"', "sk-", "sk-a1b2c3d4e5f6g7h8i9j0k1 ",
     "hooks.slack.com/services/", " ", "\n", "+", "123456:", "api_key: str", "secret: a[b] ", "{", "<", "${",
     "password='\\\\"],
)  # fmt: skip
def test_a_megabyte_of_anything_is_done_in_one_go(piece: str) -> None:
    once = redact(piece * (100_000 // len(piece)))
    assert redact(once) == once
    assert redact(piece * (1_000_000 // len(piece)))[:5_000] == once[:5_000]


def test_the_module_loads_no_other_so_that_importing_it_stays_cheap() -> None:
    code = "import sys; before = set(sys.modules); exec(open(sys.argv[1], encoding='utf-8').read(), {}); print(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-IS", "-c", code, redact.__code__.co_filename], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) <= {"__future__"}
