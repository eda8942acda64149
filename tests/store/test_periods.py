"""Times in questions, in six languages."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.store.search.periods import periods

pytestmark = pytest.mark.mechanism

TODAY = date(2025, 6, 18)  # a Wednesday


def day(iso: str, days: int) -> tuple[date, date]:
    start = date.fromisoformat(iso)
    return start, start + timedelta(days=days)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What did we decide about the parser last week?", day("2025-06-09", 7)),
        ("Was haben wir letzte Woche beschlossen?", day("2025-06-09", 7)),
        ("¿Qué decidimos la semana pasada?", day("2025-06-09", 7)),
        ("Qu'avons-nous décidé la semaine dernière ?", day("2025-06-09", 7)),
        ("Tuần trước mình quyết định gì?", day("2025-06-09", 7)),
        ("我们上周决定了什么？", day("2025-06-09", 7)),
        ("what did she say yesterday", day("2025-06-17", 1)),
        ("Was hat sie gestern gesagt", day("2025-06-17", 1)),
        ("¿Qué dijo ayer?", day("2025-06-17", 1)),
        ("Qu'a-t-elle dit hier ?", day("2025-06-17", 1)),
        ("hôm qua cô ấy nói gì", day("2025-06-17", 1)),
        ("她昨天说了什么", day("2025-06-17", 1)),
        ("who called 3 days ago", day("2025-06-15", 1)),
        ("wer rief vor 3 Tagen an", day("2025-06-15", 1)),
        ("3天前谁打来", day("2025-06-15", 1)),
        ("where was Anna on 3 March 2024?", day("2024-03-03", 9)),
        ("where was Anna on March 3rd, 2024?", day("2024-03-03", 9)),
        ("Wo war Anna am 3. März 2024?", day("2024-03-03", 9)),
        ("¿Dónde estaba Ana el 3 de marzo de 2024?", day("2024-03-03", 9)),
        ("Où était Anne le 3 mars 2024 ?", day("2024-03-03", 9)),
        ("ngày 3 tháng 3 năm 2024 Anh ở đâu?", day("2024-03-03", 9)),
        ("2024年3月3日她在哪里？", day("2024-03-03", 9)),
        ("what failed on 2024-03-03", day("2024-03-03", 9)),
        ("What happened in May 2023?", day("2023-05-01", 38)),
        ("last month", day("2025-05-01", 31)),
        ("el año pasado", (date(2024, 1, 1), date(2025, 1, 1))),
        ("what did we buy in 2022", (date(2022, 1, 1), date(2023, 1, 1))),
        ("what happened two weeks ago", day("2025-06-01", 7)),
        ("Was war vor zwei Wochen?", day("2025-06-01", 7)),
        ("¿Qué pasó hace dos semanas?", day("2025-06-01", 7)),
        ("Que s'est-il passé il y a deux semaines ?", day("2025-06-01", 7)),
        ("hai tuần trước có gì", day("2025-06-01", 7)),
        ("两周前怎么了", day("2025-06-01", 7)),
        ("what did she say a few days ago", day("2025-06-13", 5)),
        ("vor ein paar Tagen", day("2025-06-13", 5)),
        ("hace unos días", day("2025-06-13", 5)),
        ("who called on Friday", day("2025-06-13", 1)),
        ("wer rief am Freitag an", day("2025-06-13", 1)),
        ("¿Quién llamó el viernes?", day("2025-06-13", 1)),
        ("Qui a appelé vendredi dernier ?", day("2025-06-13", 1)),
        ("thứ sáu tuần trước ai gọi", day("2025-06-13", 1)),
        ("上周五谁打来", day("2025-06-13", 1)),
        ("letzte Woche Montag", day("2025-06-09", 1)),
        ("thứ hai tuần trước", day("2025-06-09", 1)),  # not "two weeks ago"
        ("last night", day("2025-06-17", 1)),
        ("anoche", day("2025-06-17", 1)),
        ("tối qua", day("2025-06-17", 1)),
        ("this morning", day("2025-06-18", 1)),
        ("im letzten Jahr", (date(2024, 1, 1), date(2025, 1, 1))),
        ("l'an dernier", (date(2024, 1, 1), date(2025, 1, 1))),
        ("mid-May 2024", day("2024-05-01", 38)),
        ("Feb 12, 2024", day("2024-02-12", 9)),
        ("2024年五月", day("2024-05-01", 38)),
    ],
)
def test_a_time_in_a_question(text, expected):
    assert periods(text, TODAY) == [expected]


def test_a_month_without_a_year_is_that_of_every_year_so_far():
    found = periods("what did we plan in August", TODAY)
    assert found[0] == day("2024-08-01", 38) and len({start.year for start, _ in found}) == len(found) == 9


@pytest.mark.parametrize(
    "text",
    [
        "what may I do", "they march on", "a trip to mars", "Was ist hier kaputt?", "ngày mai đi đâu", "port 2024 in use",
        "on 30 February 2024", "version 3.5", "the week of the parser", "it runs on 3.5", "What did April say about June's party?",
        "Spring Boot fails", "they fall ill", "elle a été malade", "next Friday", "lần thứ hai", "每周五", "sept personnes",
        "a plan for the weekend", "un viaje de mar", "the Friday report",
        "the day before yesterday", "the week before last", "上上周", "上周末", "cuối tuần trước",
    ],
)  # fmt: skip
def test_no_time(text):
    assert periods(text, TODAY) == []


@given(
    st.text(alphabet="0123456789 -./年月日天前上周五半个两 inmayhoergstdwk ngàythángnămtrướcvor,", max_size=60),
    st.dates(date(1990, 1, 1), date(2200, 1, 1)),
)
def test_any_text_and_day_gives_an_answer(text, today):
    assert all(start < end for start, end in periods(text, today))
