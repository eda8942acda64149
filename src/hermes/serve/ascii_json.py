"""JSON in ASCII. Half a surrogate pair, which the record may hold in any text, is escaped: UTF-8 can't carry it."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class AsciiJson(JSONResponse):
    """A JSON response that may contain any text of the record or of a model."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")
