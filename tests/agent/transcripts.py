"""Conversations as they happen, each with what a summary of it must not lose.

The lists were written from the conversations, before the code that is held to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Transcript:
    """A conversation and what must survive, section by section ("anywhere": in any of them)."""

    name: str
    messages: list[dict[str, Any]]
    anywhere: list[str]
    decisions: list[str] = field(default_factory=list)
    open_work: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    title_words: list[str] = field(default_factory=list)  # at least one of them is in the title


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(number: int, name: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": f"call_{number}", "tool_name": name}


PARSER = Transcript(
    "english, a decision about a parser",
    [
        user(
            "Hi! I'm writing the configuration language for Quillbox. Hand-written recursive descent, tree-sitter or lark?"
            " The grammar is about 40 rules, and error messages matter because non-programmers edit these files."
        ),
        assistant(
            "For 40 rules all three work, so let the error messages decide.\n\n"
            "- Recursive descent gives the best messages, but every rule is written by hand.\n"
            "- tree-sitter recovers from anything, so you'd walk ERROR nodes.\n"
            "- lark in LALR mode keeps the grammar in one file; `UnexpectedInput.match_examples` gives friendly messages.\n"
        ),
        user(
            "Speed isn't an issue, files are under 200 lines. OK let's go with lark then, LALR, and we keep the grammar in"
            " quillbox/grammar.lark. Please write down that we rejected tree-sitter because of its error recovery."
        ),
        assistant(
            "Noted. I'll also pin `lark==1.1.9` in requirements/base.txt. Do you want the grammar cached on disk?"
        ),
        user("Not sure about caching yet. TODO: ask Marta about the startup budget of 150 ms before we decide."),
    ],
    anywhere=["40 rules", "200 lines", "150 ms", "UnexpectedInput.match_examples", "lark==1.1.9", "Marta"],
    decisions=["let's go with lark", "rejected tree-sitter"],
    open_work=["ask Marta about the startup budget"],
    files=["quillbox/grammar.lark", "requirements/base.txt"],
    title_words=["configuration", "language", "Quillbox"],
)

OUTAGE = Transcript(
    "english, an outage with tools",
    [
        user("The checkout service has been returning 502s since 14:20 UTC, can you look at what's going on?"),
        assistant(
            "Let me look at the logs.",
            tool_calls=[call(1, "terminal", '{"command": "tail -n 50 /var/log/checkout/error.log"}')],
        ),
        tool(1, "terminal", "ERROR upstream timed out host=10.0.3.17:8443 request_id=9f8e7d6c5b\n" * 30),
        assistant(
            "All errors point at 10.0.3.17. The pool `PAYMENT_POOL_SIZE` is 5 and each call takes 2.4 s, so the workers starve.",
            tool_calls=[call(2, "terminal", '{"command": "kubectl -n shop get deploy payments -o yaml"}')],
        ),
        tool(2, "terminal", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: payments}\nspec: {replicas: 2}"),
        assistant(
            "It runs 2 replicas. I suggest PAYMENT_POOL_SIZE=20 in deploy/payments/values.yaml and 4 replicas. Shall I apply it?"
        ),
        user(
            "We decided in OPS-4412 never to change values on a Friday. Raise the pool only, we'll use 20, replicas stay."
        ),
        assistant(
            "Applied: pool 20 in deploy/payments/values.yaml (commit 4be91c7). The error rate fell from 31% to 0.2%."
        ),
        user("Good. What should the alert threshold be? We still need a runbook."),
    ],
    anywhere=["14:20", "10.0.3.17", "PAYMENT_POOL_SIZE", "2.4 s", "OPS-4412", "4be91c7", "31%", "0.2%", "502"],
    decisions=["never to change values on a Friday", "we'll use 20"],
    open_work=["What should the alert threshold be?", "We still need a runbook"],
    files=["/var/log/checkout/error.log", "deploy/payments/values.yaml"],
    title_words=["checkout", "service", "502s"],
)

GERMAN = Transcript(
    "german, an insulation job",
    [
        user(
            "Hallo, kannst du mir helfen, die Dachdämmung für unser Haus in Freiburg zu planen? Es sind 84 m² Dachfläche."
        ),
        assistant(
            "Gerne. Bei 84 m² und Sparren von 16 cm kommen Holzfaserplatten (WLG 040) oder Zellulose in Frage."
            " Zellulose kostet etwa 45 € pro m², Holzfaser 70 €."
        ),
        user(
            "Wir haben entschieden: wir nehmen Zellulose, 24 cm stark. Die Angebote liegen in Angebote/dach_2026.xlsx."
            " Der U-Wert muss unter 0,14 W/m²K liegen, sonst gibt es keine KfW-Förderung."
        ),
        assistant("Mit 24 cm kommt ihr auf 0,138. Der Antrag BAFA-261 muss vor dem Auftrag gestellt werden."),
        user("Noch offen: wer macht die Luftdichtheitsprüfung? Das klären wir nächste Woche mit Herrn Öztürk."),
    ],
    anywhere=["84 m²", "16 cm", "45 €", "70 €", "24 cm", "0,14", "0,138", "BAFA-261", "Öztürk"],
    decisions=["wir nehmen Zellulose"],
    open_work=["Luftdichtheitsprüfung"],
    files=["Angebote/dach_2026.xlsx"],
    title_words=["Dachdämmung", "Haus", "Freiburg"],
)

CHINESE = Transcript(
    "chinese, moving a blog",
    [
        user("我想把博客从老服务器搬到新的VPS上,打算用docker部署,数据库也放进容器里。你觉得行吗?"),
        assistant(
            "可以,但数据库一定要挂载数据卷。目录结构用/srv/blog/compose.yaml和/srv/blog/data/mysql。内存至少2GB。"
        ),
        user("那就用docker compose。我们决定不用MySQL,改用PostgreSQL 16。备份每天凌晨3点跑,保留30天。"),
        assistant("好的,备份脚本放在scripts/backup.sh,环境变量是PG_BACKUP_DIR。每次备份约450MB。证书由Caddy自动续期。"),
        user("域名还没有转过来,下一步要改DNS的TTL为300秒。旧服务器什么时候关?"),
    ],
    anywhere=["2GB", "PostgreSQL 16", "30天", "PG_BACKUP_DIR", "450MB", "300秒", "3点"],
    decisions=["那就用docker compose", "改用PostgreSQL 16"],
    open_work=["域名还没有转过来", "旧服务器什么时候关"],
    files=["/srv/blog/compose.yaml", "/srv/blog/data/mysql", "scripts/backup.sh"],
    title_words=["博客", "服务器"],
)

JAPANESE = Transcript(
    "japanese, a report tool",
    [
        user("月次レポートの自動生成ツールを作りたいです。元データはreports/sales_2026.csvで、約12万行あります。"),
        assistant("pandasで集計してPDFにする方法と、polarsを使う方法があります。12万行ならどちらも10秒以内です。"),
        user("polarsを採用することにしました。出力はout/monthly.pdfにします。担当は佐藤さんです。"),
        assistant(
            "了解しました。関数は`build_report()`で、tests/test_report.pyにテストを置きます。フォントはどれを使いますか？"
        ),
        user("フォントはまだ未定です。後で決めます。締め切りは2026-12-01です。"),
    ],
    anywhere=["12万行", "10秒", "build_report", "佐藤", "2026-12-01"],
    decisions=["polarsを採用することにしました"],
    open_work=["フォントはまだ未定です"],
    files=["reports/sales_2026.csv", "out/monthly.pdf", "tests/test_report.py"],
    title_words=["月次レポート", "自動生成"],
)

SPANISH = Transcript(
    "spanish, a trip on a budget",
    [
        user(
            "¿Puedes ayudarme a organizar un viaje a Oaxaca para cuatro personas? Tenemos 1.800 € y siete días en marzo."
        ),
        assistant(
            "Claro. El vuelo desde Madrid ronda los 620 € por persona, así que el presupuesto queda justo. ¿Podéis ir en abril?"
        ),
        user(
            "No, en marzo. Decidimos volar desde Lisboa (410 € cada uno) y nos quedamos con el hotel Azul, reserva HX-88213."
        ),
        assistant(
            "Perfecto. He guardado el itinerario en viajes/oaxaca.md. El autobús ADO tarda 6 horas y cuesta 950 pesos."
        ),
        user("Falta comprar el seguro. ¿Quién recoge el coche en el aeropuerto?"),
    ],
    anywhere=["1.800 €", "siete días", "620 €", "410 €", "HX-88213", "6 horas", "950 pesos"],
    decisions=["Decidimos volar desde Lisboa", "nos quedamos con el hotel Azul"],
    open_work=["Falta comprar el seguro", "¿Quién recoge el coche en el aeropuerto?"],
    files=["viajes/oaxaca.md"],
    title_words=["viaje", "Oaxaca"],
)

RUSSIAN = Transcript(
    "russian, a database migration",
    [
        user("Привет! Помоги перенести базу заказов с MySQL на PostgreSQL, в таблице orders_archive 48 млн строк."),
        assistant("Можно через pgloader: конфигурация в migrate/orders.load. На таком объёме уйдёт около 3 часов."),
        user("Решили переносить ночью с субботы на воскресенье. Индексы создаём после загрузки, это важно."),
        assistant("Хорошо. Параметр maintenance_work_mem поставлю 2 ГБ. Что делать с колонкой legacy_flags?"),
        user("Пока не знаю. Осталось проверить кодировку в /etc/mysql/my.cnf и предупредить Ольгу."),
    ],
    anywhere=["orders_archive", "48 млн", "3 часов", "maintenance_work_mem", "2 ГБ", "legacy_flags", "Ольгу"],
    decisions=["Решили переносить ночью", "Индексы создаём после загрузки"],
    open_work=["Осталось проверить кодировку", "Что делать с колонкой legacy_flags?"],
    files=["migrate/orders.load", "/etc/mysql/my.cnf"],
    title_words=["базу", "заказов", "MySQL"],
)

KOREAN = Transcript(
    "korean, a mobile application",
    [
        user("안녕하세요, 모바일 앱의 로그인 화면을 다시 설계하고 싶어요. 지금 이탈률이 37%나 됩니다."),
        assistant("소셜 로그인과 이메일 링크 중에서 고를 수 있습니다. 이메일 링크는 평균 12초 정도 걸립니다."),
        user("카카오 로그인을 쓰기로 결정했어요. 화면 코드는 app/src/LoginScreen.tsx에 있습니다."),
        assistant("좋습니다. 이벤트 이름은 login_success로 하고 버전 2.14.0에 넣겠습니다. 애플 로그인도 필요할까요?"),
        user("아직 모르겠어요. 애플 심사 기준을 확인해야 합니다."),
    ],
    anywhere=["37%", "12초", "login_success", "2.14.0"],
    decisions=["카카오 로그인을 쓰기로 결정했어요"],
    open_work=["애플 심사 기준을 확인해야 합니다", "애플 로그인도 필요할까요?"],
    files=["app/src/LoginScreen.tsx"],
    title_words=["모바일", "로그인"],
)

FRENCH = Transcript(
    "french, a lease",
    [
        user(
            "Bonjour, pouvez-vous relire le bail de l'appartement rue des Lilas ? Le loyer est de 1 150 € charges comprises."
        ),
        assistant(
            "Le dépôt de garantie de 2 300 € dépasse le plafond d'un mois hors charges. Le fichier bail_lilas.pdf cite l'article 22."
        ),
        user("On a décidé de demander la correction avant de signer. On garde la clause sur le vélo."),
        assistant("J'ai préparé le courrier dans courriers/bailleur.odt. La visite a lieu le 14/12/2026 à 18h30."),
        user("Il reste à envoyer le dossier au garant. Faut-il une assurance avant l'état des lieux ?"),
    ],
    anywhere=["1 150 €", "2 300 €", "article 22", "14/12/2026", "18h30"],
    decisions=["On a décidé de demander la correction", "On garde la clause sur le vélo"],
    open_work=["Il reste à envoyer le dossier au garant", "Faut-il une assurance"],
    files=["bail_lilas.pdf", "courriers/bailleur.odt"],
    title_words=["bail", "appartement", "Lilas"],
)

ALL = [PARSER, OUTAGE, GERMAN, CHINESE, JAPANESE, SPANISH, RUSSIAN, KOREAN, FRENCH]
