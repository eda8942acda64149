"""Secrets are masked and nothing else is: at least 60 of each, and what must hold for any text.

The secrets are in tests/support/secret_kinds.py.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.store.redact import redact
from tests.support.secret_kinds import SECRETS
from tests.support.sizes import size, some

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
    # commands with placeholders, or with options that only look alike
    "curl -u user:pass https://example.org\ncurl --user username:password https://example.org",
    "curl -u $USER:$PASS https://example.org; curl -u '<user>:<password>' https://example.org",
    'curl -u "${USER}:${PASSWORD}" https://example.org -u your_name:your_password',
    "curl -u ada: https://example.org && docker run -u 1000:1000 -p 8080:80 nginx",
    "see the curl manual\ndocker run -u app:staff42 -p 5432:5432 image",
    "mysql -u root -p shop\nmysql -uroot -p$MYSQL_PASSWORD shop\nmysqldump -p<password> shop",
    "mysql --password=$(cat key) --port=3306 -P3307; mkdir -p4days/x; ssh -p2222 host; the mysql client -p option",
    "PGPASSWORD=$PGPASSWORD psql -U app\nredis-cli -a $REDIS_PASS PING\nredis-cli -h cache --scan -a",
    "sshpass -p <password> ssh host; sshpass -e ssh -p 2222 host2\nsshpass -p $PASS ssh -p 2222 host",
    "machine learning login flow password reset\nmachine <host> login <user> password <password>",
    "Cookie: theme=dark; lang=en\nSet-Cookie: <name>=<value>; Path=/; Max-Age=3600; SameSite=Lax",
    'Cookie: session=$SESSION\nA cookie: name=value pairs. {"Cookie": "sid=..."} Cookies: 2 (1.5 KB)',
    "Cookie: sessionid=your_session_id; token=<token>",
    "key-value store, key-deadbeef, primary-key-0123456789abcdef0123456789abcdef",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "--password PASSWORD, --password=FILE; tool --password stdin; use --password to set one; --password $PW --pass <pw>",
    'add_option("--password", help="..."); --password "the password"; --cookie FILE; --cookie jar.txt; --cookie theme=dark',
    # prose about passwords
    "My password is wrong. The password is not working! my password is too short, the password is case-sensitive",
    "the password is incorrect; the password is required, the password is \"missing\" and my password is 'too short'",
    "The password is hashed, the password is SHA-256 and salted; the password is argon2id; the password is base64-encoded",
    "the password is 8 characters long, the password is 12-64 characters, the password is 100% safe",
    "my password is the same as on GitHub; the password is GitHub's; my password is 2FA-protected; the password is in 1Password",
    "The password is $DB_PASSWORD, the password is <your password>, the password is ******** and the password is db_password2",
    "Das Passwort ist falsch. Das Passwort ist abgelaufen! mon mot de passe est incorrect, la contraseña es incorrecta",
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
        "password", "token", "api_key", "secret=", "pwd:", "=", ": ", '"', "'", "\\", "\\n", "\n", "://", "@",
        "[masked:",
    ]
    + ["[masked:password]", "]", "Bearer ", "Authorization: ", " ", ",", "a1b2c3d4e5f6", "x", "é", "文", "\ud800"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=12), max_size=8).map("".join)


@settings(max_examples=size(25, 300), deadline=None)
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


@settings(max_examples=size(25, 300), deadline=None)
@given(DOCUMENTS, st.booleans())
def test_json_stays_json_with_the_same_shape(document: Any, escaped: bool) -> None:
    read = json.loads(redact(json.dumps(document, ensure_ascii=escaped)))
    before, after = leaves(document), leaves(read)
    assert len(after) == len(before)
    assert [type(x) for x in after] == [type(x) for x in before]


@settings(max_examples=size(25, 200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["content", "note", "文"]), SECRET_LEAVES | CLEAN_LEAVES), max_size=6))
def test_leaves_without_a_secret_are_equal_after_the_document_is_redacted(pairs: list[tuple[str, Any]]) -> None:
    document = [{key: value} for key, value in pairs]
    for before, after in zip(leaves(document), leaves(json.loads(redact(json.dumps(document)))), strict=True):
        assert after == (redact(before) if isinstance(before, str) else before)


@pytest.mark.parametrize(
    "piece",
    some(["a", "eyJ", "eyJhbGciOiJIUzI1NiJ9.", "=:", "://", "://a:", "password=", 'password="', "token: ", "AKIA", "-",
     "@", "Bearer ", "Authorization: Bearer a", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----Comment: ",
     "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq", "\\", '\\"', "sk-", "sk-a1b2c3d4e5f6g7h8i9j0k1 ",
     "hooks.slack.com/services/", " ", "\n", "+", "123456:", "api_key: str", "secret: a[b] ", "{", "<", "${",
     "password='\\\\", "curl -u a:b1c2 ", "mysql -p' ", "password is ", "password for a is ", "Cookie: a=1;", "Cookie: ",
     "machine a login b password "], 18),
)  # fmt: skip
def test_a_megabyte_of_anything_is_done_in_one_go(piece: str) -> None:
    once = redact(piece * (100_000 // len(piece)))
    assert redact(once) == once
    assert redact(piece * (1_000_000 // len(piece)))[:5_000] == once[:5_000]


def test_opening_a_store_does_not_load_the_rules_of_masking() -> None:
    code = "import sys, hermes_state; print('hermes.store.redact' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
