"""At least one secret of every kind that is masked, in the text it usually stands in.

No secret here is real, and none stands in this file in one piece: each is put together when the test runs, so that
scanners of the repository have nothing to find.
"""

from __future__ import annotations

import base64
import json
import random
import string
from pathlib import Path

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
    *[
        ("password", f"log in with {name}§ and go on", "hunt" + "er2secret")
        for name in ("password=", "password: ", "passwd = ", "pwd=", "my Password: ", "passphrase=")
    ],
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
    # commands that take a password as an argument
    ("password", "curl -u ada:§ https://example.org/v1", "corre" + "cthorse"),
    (
        "password",
        "curl -sS -X POST 'https://example.org/?a=1&b=2' \\\n  --user 'ada:§' -d @body.json",
        "S3c" + "ure Pass!",
    ),
    ("password", "/usr/bin/curl --proxy-user=ada:§ -O https://example.org/a.tgz", "hunt" + "er2"),
    ("password", "$ curl -fsSLu ada:§ https://example.org", "tr0ub" + "4dor"),
    ("password", "mysql -u root -p§ shop < dump.sql", "corre" + "cthorse"),
    ("password", "docker exec db mysqldump -uroot -p'§' shop | gzip > shop.gz", "S3c" + "ure Pass!"),
    ("password", "mysqladmin --user=root --password=§ status", "corre" + "cthorse"),
    ("password", "PGPASSWORD=§ psql -h db -U app", "corre" + "cthorse"),
    ("password", "redis-cli -h cache -a § PING", "corre" + "cthorse"),
    ("mailgun", "mailgun: §", "ke" + "y-" + lot(string.ascii_lowercase + string.digits, 32)),
    ("password", "docker login --password § -u ada registry.example.org", "hunter" + "2-Tulip"),
    ("password", "svn checkout --username ada --password '§' https://svn.example.org", "correct-horse"),
    ("cookie", "curl --cookie 'sessionid=§' https://example.org", lot(ALNUM, 24)),
    ("password", "sshpass -p § ssh ada@example.org uptime", "corre" + "cthorse"),
    ("password", "sshpass -p'§' rsync -a . ada@example.org:", "hunt" + "er2"),
    # .netrc
    ("password", "machine api.example.org login ada password §", "corre" + "cthorse"),
    ("password", "machine example.org\n  login ada\n  password §", "hunt" + "er2"),
    # cookies
    ("cookie", "Cookie: theme=dark; sessionid=§", lot(ALNUM, 32)),
    ("cookie", "< Set-Cookie: sid=§; Path=/; Expires=Wed, 21 Oct 2026 07:28:00 GMT; HttpOnly", lot(HEX, 40)),
    ("cookie", '{"headers": {"Cookie": "sid=§", "Accept": "*/*"}}', lot(ALNUM, 24)),
    ("cookie", "curl -H 'cookie: auth=§; lang=en' https://example.org", lot(WORD, 30)),
    ("mailgun", "curl -s --user 'api:§' https://api.mailgun.net/v3/x/messages", "key" + "-" + lot(HEX, 32)),
    ("mailgun", "the sending key is §, as before", "key" + "-" + lot(HEX, 32)),
    ("mailgun", "mailgun: §", f"{lot(HEX, 32)}-{lot(HEX, 8)}-{lot(HEX, 8)}"),
    # prose
    ("password", "my password is §, please log in", "hunt" + "er2secret"),
    ("password", "The new password for the router is: §", "Tr0ub" + "4dor&3"),
    ("password", "the root password is '§' on both machines", "correct" + "horse"),
    ("password", "My passphrase was § until today.", "xK" + "cd!93-pQ"),
    ("password", "Das Passwort lautet § und gilt ab heute", "Gehe" + "im-2024!x"),
    ("password", "mon mot de passe est §", "soleil" + "42bleu"),
    ("password", "la contraseña es §", "verano" + "2024"),
    ("password", "a senha é §", "Cafe" + "zinho99"),
]


def everything() -> str:
    """All of them in one text, one below the other."""
    return "\n".join(around.replace("§", secret) for _, around, secret in SECRETS)


def leaks(folder: Path, *, left_out: tuple[str, ...] = ()) -> list[str]:
    """The secrets that stand in plain text below a folder: kind and file. Every byte of every file counts."""
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name in left_out:
            continue
        data = path.read_bytes()
        for kind, around, secret in SECRETS:
            ways = {secret, json.dumps(secret)[1:-1], secret.replace("\n", "\n+")}  # in JSON, in the history
            whole = [way for way in ways if way.encode() in data]
            if len(secret) < 12:  # short enough to stand somewhere by accident
                whole = [way for way in whole if around.partition("§")[0][-9:].encode() + way.encode() in data]
            if whole:
                found.append(f"{kind} in {path.relative_to(folder)}")
    return found
