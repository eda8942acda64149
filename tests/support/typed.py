"""A vendor's TypeScript types as a schema: values are written as literals of a type, and npm's typescript says what is wrong.

errors = type_errors(folder, 'import type { Activity } from "botframework-schema";', [("Partial<Activity>", {"type": "message"})], tmp_path)
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.node import node

TYPESCRIPT = "typescript@5.9.3"
_OPTIONS = "--noEmit --strict --skipLibCheck --target es2022 --module node16 --moduleResolution node16 --types node --pretty false"


def type_errors(folder: Path, imports: str, values: Sequence[tuple[str, Any]], work: Path) -> list[str]:
    """The compiler's errors for these values, as "number: message"; [] if all are of their types.

    A literal may not have fields that its type does not know. `folder` has the types and typescript in its node_modules.
    """
    work.mkdir(exist_ok=True)
    (work / "node_modules").symlink_to(folder / "node_modules")
    lines = [
        imports,
        *(f"export const v{at}: {kind} = {json.dumps(value)};" for at, (kind, value) in enumerate(values)),
    ]
    (work / "check.mts").write_text("\n".join(lines), "utf-8")
    program = str(folder / "node_modules" / "typescript" / "bin" / "tsc")
    words = [node(), program, *_OPTIONS.split(), "check.mts"]
    outcome = subprocess.run(words, cwd=work, capture_output=True, text=True, timeout=120)
    found = re.findall(r"^check\.mts\((\d+),\d+\): error (.*(?:\n .*)*)", outcome.stdout, re.MULTILINE)
    first = imports.count("\n") + 2
    assert outcome.returncode == 0 or found, outcome.stdout + outcome.stderr
    return [f"{int(line) - first}: {text}" for line, text in found]
