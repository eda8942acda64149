"""These tests run once on each engine.

A quick run tries every case of a test on SQLite, and one of them on the server: what reads and checks the cases is the
same code. What tries thousands of arguments, or asks for every page of a search, is left to SQLite then. Named by itself (file::test, -k), a test runs with all its cases.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.support.postgres import ENGINES
from tests.support.sizes import THOROUGH, some

_ON_A_SERVER = 1  # cases of a test
_ON_SQLITE = ("test_fuzz", "test_hostile_arguments", "test_odd_arguments", "test_search_pages", "test_search_language")
# Promises about what other programs find in plain files; tests/store/encrypted has a part of the others.
_ABOUT_PLAIN_FILES = frozenset(
    """test_words_of_deleted_messages_are_gone_after_tidying test_a_word_that_comes_back_is_listed_again_by_every_process
    test_lifted_payloads_are_in_no_transcript
    test_a_secret_is_masked_before_it_is_kept_anywhere test_with_masking_off_everything_is_kept_as_it_is
    test_no_file_has_a_word_of_it test_copies_that_a_repair_put_aside_are_named test_a_simple_reader_of_a_transcript_can_follow
    test_delete_removes_the_session_its_messages_and_its_transcript test_prune_removes_old_ended_sessions_whole
    test_a_dry_run_counts_and_removes_nothing test_a_transcript_that_was_not_written_at_the_time_is_completed
    test_transcripts_for_the_gateway_only test_what_was_shredded_is_shredded_everywhere_and_stays_so
    test_a_damaged_file_is_named_and_the_rest_comes
    test_eight_threads_append_to_one_store test_each_message_is_in_the_transcript_when_append_returns""".split()
)


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    plain = [
        item
        for item in items
        if item.nodeid.endswith("[encrypted]") and item.name.partition("[")[0] in _ABOUT_PLAIN_FILES
    ]
    if plain:
        config.hook.pytest_deselected(items=plain)
        items[:] = [item for item in items if item not in plain]
    if THOROUGH or config.option.keyword or any("::" in word for word in config.args):
        return
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        engine = str(parameters.get("engine", ""))
        if item.path.parent.name == "contract" and engine.startswith("postgres"):
            cases[engine, item.nodeid.partition("[")[0]].append(item)
    left_out = {
        one
        for all_ in cases.values()
        for one in set(all_) - set(() if all_[0].path.stem in _ON_SQLITE else some(all_, _ON_A_SERVER))
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
