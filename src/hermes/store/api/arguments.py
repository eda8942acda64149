"""Times, numbers and texts as callers give them, checked before a database sees them.

A database converts what is of another type silently, or stores it (SQLite), or refuses it in words of its own (PostgreSQL):
here it is InvalidInput, which names the argument, and nothing is stored. `guarded` does that for every public method: the
errors that wrong arguments lead to anywhere below are explained by the annotations of the method.
"""

from __future__ import annotations

import collections.abc
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from hermes.errors import HermesError, InvalidInput, StoreError
from hermes.store.records import codec

_Class = TypeVar("_Class", bound=type)
_OWN = ("hermes.store", "hermes.home", "hermes.home", "hermes.errors")


def guarded(store: _Class) -> _Class:
    """Decorate a class: its public methods raise errors of `hermes.errors` alone, whatever they are called with."""
    members = {name: member for base in reversed(store.__mro__) for name, member in vars(base).items()}
    for name, member in members.items():
        call = member.__func__ if isinstance(member, staticmethod) else member
        if isinstance(call, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(store, name, staticmethod(_guarded(call)) if call is not member else _guarded(call))
    return store


def _guarded(call: FunctionType) -> Callable[..., Any]:
    declared = getattr(call, "__wrapped__", call)  # the function with the annotations, in a decorated method

    @wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except (OSError, StoreError, ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
            ours = _explained(error, declared, args, kwargs)
            if ours is error:
                raise
            raise ours from error

    return checked


def _explained(error: Exception, call: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception:
    """The error to raise: InvalidInput where an argument is none of the annotated type; a defect of ours stays as it is."""
    refused = type(error) is StoreError  # the database may have refused a value
    if (isinstance(error, HermesError) and not refused) or _is_callers(error):
        return error
    if isinstance(error, OSError):
        from hermes.store.engines.base import from_os

        return from_os(error, Path(str(error.filename or getattr(args[0], "path", "the store"))))
    names = {**collections.abc.__dict__, **call.__globals__}
    arguments = {**dict(zip(call.__code__.co_varnames, args, strict=False)), **kwargs}
    for name, value in arguments.items():
        kind = call.__annotations__.get(name)
        if kind is not None and not _fits(value, eval(kind, names)):  # an annotation of ours
            return InvalidInput(f"{name} of {call.__name__} can't be {_shown(value)}")
    if isinstance(error, (ValueError, OverflowError)) and not isinstance(error, HermesError):
        return InvalidInput(f"{call.__name__} can't be called with this: {str(error).partition(chr(10))[0]}")
    return error


def _is_callers(error: Exception) -> bool:
    """Whether an error comes from a function or an iterable of the caller, and not from a library."""
    trace = error.__traceback__
    while trace is not None:
        name, file = str(trace.tb_frame.f_globals.get("__name__")), trace.tb_frame.f_code.co_filename
        root = name.partition(".")[0]
        is_library = root in sys.stdlib_module_names or "site-packages" in file or file.endswith((".c", ".pyx"))
        if not name.startswith(_OWN) and (root == "hermes" or not is_library):
            return True
        trace = trace.tb_next
    return False


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type, as far as one can look into it without consuming it."""
    if kind is Any or kind is None or kind is NoneType:
        return kind is Any or value is None
    base, parts = get_origin(kind) or kind, get_args(kind)
    if base in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if base is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if not isinstance(value, base) or (base is not bool and isinstance(value, bool)):
        return False
    if base is not str and base is not bytes and isinstance(value, (str, bytes)):  # no sequence of texts
        return False
    if isinstance(value, Mapping):
        return not parts or all(_fits(key, parts[0]) and _fits(item, parts[1]) for key, item in value.items())
    if isinstance(value, tuple) and base is tuple:
        return len(value) == len(parts) and all(map(_fits, value, parts))
    return not parts or not isinstance(value, Collection) or all(_fits(item, parts[0]) for item in value)


def checked_time(value: Any, name: str, unit: str = "seconds since 1970") -> float:
    """A time, or a number of another unit, as it may be stored."""
    if (number := codec.number(_as_float(value), "REAL")) is None:
        raise InvalidInput(f"{name} is a number of {unit}, not {_shown(value)}")
    return number


def checked_period(value: Any, name: str, unit: str = "seconds since 1970") -> float:
    """A length of time in this unit, or one end of a range of times; infinity is for ever."""
    if math.isnan(length := _as_float(value)):
        raise InvalidInput(f"{name} is a number of {unit}, not {_shown(value)}")
    return length


def checked_ttl(value: Any) -> float:
    """How many seconds a lease lasts: it ends one day, also when its holder never releases it."""
    return checked_time(value, "the time to live of a lease", "seconds")


def checked_number(value: Any, name: str, kind: str) -> int | float:
    """A number for a column of this type: INTEGER or REAL."""
    if (number := codec.number(value, kind)) is None:
        raise InvalidInput(f"{name} is a {'whole ' if kind == 'INTEGER' else ''}number, not {_shown(value)}")
    return number


def checked_text(value: Any, name: str) -> str | None:
    """A text or None; a whole number (the id of a user) becomes its digits."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return _shown(value)
    raise InvalidInput(f"{name} is text, not {type(value).__name__}")


def _as_float(value: Any) -> float:
    """NaN for what is no number, or one that is too large."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # Python prints no number of more than 4,300 digits
        shown = f"a very large {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
