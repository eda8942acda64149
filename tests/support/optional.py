"""Libraries that take long to load, and that some machines do not have.

acp = library("acp")        # the file's tests are skipped without it; it is loaded when the first of them uses it

Every test process reads every test file, and runs some of them: what a file loads, all processes load.
"""

from __future__ import annotations

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from typing import Any

import pytest


def library(name: str) -> Any:
    """A library, not loaded yet."""
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        pytest.skip(f"could not import {name!r}", allow_module_level=True)
    spec.loader = LazyLoader(spec.loader)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
