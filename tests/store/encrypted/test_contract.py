"""A part of the contract on an encrypted store: what is written, exported, brought in, deleted and found again."""

from __future__ import annotations

from tests.contract.test_export_import import *  # noqa: F403
from tests.contract.test_parts import (  # noqa: F401
    test_a_base64_payload_is_not_indexed_and_the_text_beside_it_is,
    test_the_reference_in_place_of_a_payload_names_its_file,
    test_the_same_picture_twice_is_stored_once_and_goes_with_the_last_that_shows_it,
)
from tests.contract.test_trash import *  # noqa: F403
