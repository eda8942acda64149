"""The particulars of a text: file names, identifiers, numbers with their units, dates.

They are what nobody can make up again once it is lost, and they can be found without understanding the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hermes.agent.scripts import DENSE
from hermes.agent.wording import is_stop

_NAME = f"(?:(?![{DENSE}\uac00-\ud7ff])[\\w@+~-])"  # a character of a file name; dense scripts would run into their sentence
_PART = f"(?:{_NAME}|\\.(?={_NAME}))+"
_ENDINGS = (
    "py|pyi|ipynb|js|jsx|ts|tsx|mjs|cjs|vue|svelte|html?|css|scss|less|json5?|jsonl|ya?ml|toml|ini|cfg|conf|cnf|env|lock|xml|csv|tsv|"
    "xlsx?|ods|docx?|odt|pptx?|odp|pdf|md|mdx|rst|txt|tex|bib|log|sh|bash|zsh|fish|ps1|bat|sql|db|sqlite3?|rs|go|java|kt|kts|scala|"
    "rb|php|pl|lua|c|h|cc|cpp|hpp|cxx|cs|fs|swift|m|mm|r|jl|hs|ml|ex|exs|erl|clj|dart|zig|nim|proto|graphql|tf|hcl|nix|lark|load|"
    "gradle|cmake|mk|service|png|jpe?g|gif|svg|webp|ico|mp3|mp4|wav|mkv|mov|zip|tar|gz|tgz|bz2|xz|zst|7z|whl|jar|iso|img|bin|exe|"
    "dll|so|key|pem|crt|pub|patch|diff|bak|tmp|ics|vcf|epub|parquet|gguf|safetensors|pt|onnx|npz|plist|desktop|eml"
)
_PATH = re.compile(
    rf"(?<![A-Za-z0-9\u00c0-\u04ff_/.:@+~-])(?:(?:~|\.{{1,2}})?/{_PART}(?:/{_PART})*/?|[A-Za-z]:\\[^\s\"'<>|:*?]+"  # C:\a
    rf"|{_PART}(?:/{_PART})+/?)"  # a/b
    rf"|(?<![A-Za-z0-9\u00c0-\u04ff_./@+~-])(?:{_NAME}|\.)(?:{_NAME}|\.(?={_NAME}))*\.(?:{_ENDINGS})(?![A-Za-z0-9_])"  # name.ext
    r"|(?<![A-Za-z0-9_./])(?:Makefile|Dockerfile|Justfile|Jenkinsfile|Procfile|Gemfile|Rakefile|Vagrantfile|CMakeLists\.txt|LICENSE|"
    r"\.(?:env|gitignore|bashrc|zshrc|vimrc|dockerignore|editorconfig|npmrc)(?:\.\w+)?)(?!\w)"
)
_NO_PATH = re.compile(r"^(?:\d+/\d+(?:/\d+)?|and/or|[A-Za-z]/[A-Za-z]|w/o|n/a|he/she|s/he|\w+/m[²2]K?)$", re.IGNORECASE)
_URL = re.compile(
    r"\b(?:https?|ftp|ssh|git|file|postgres(?:ql)?|mysql|redis|s3)://[^\s<>\"'）」】，。]+[^\s<>\"'）」】，。.,;:!?)\]]"
)
_SPAN = re.compile(r"(?<!`)`([^`\n]{1,120})`(?!`)")
_A = r"(?<![A-Za-z0-9_])"  # an identifier may stand right beside a letter of another script
_Z = r"(?![A-Za-z0-9_])"
_IDENTIFIER = re.compile(
    rf"{_A}[0-9a-fA-F]{{8}}-(?:[0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}{_Z}"  # a UUID
    rf"|{_A}[A-Z][A-Z0-9]{{1,9}}-\d+{_Z}"  # OPS-4412
    rf"|(?<![\w.+-])[A-Za-z0-9_][\w.+-]{{0,63}}@[\w-]+(?:\.[\w-]+)+{_Z}"  # a mail address
    rf"|{_A}\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?::\d+)?{_Z}"  # an IP address
    rf"|{_A}(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{{7,64}}{_Z}"  # a hash
    rf"|{_A}\$?[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+(?:\(\))?(?:=[\w.]+)?"  # snake_case, CONSTANT=1
    rf"|{_A}[a-z]+[0-9]*[A-Z][A-Za-z0-9]*(?:\(\))?{_Z}|{_A}[A-Z][a-z0-9]+[A-Z][A-Za-z0-9]*{_Z}"  # camelCase, PascalCase
    rf"|(?<![A-Za-z0-9_.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){{0,8}}\(\)"  # a call()
    rf"|(?<![\w-])--[a-z][\w-]+(?:=\S+)?"  # --a-flag
    rf"|(?<![\w-])[A-Za-z][\w-]*(?:==|>=|<=|~=|@)\d[\w.]*"  # lark==1.1.9
    rf"|{_A}v?\d+\.\d+\.\d+(?:[-.+][0-9A-Za-z.]+)?{_Z}|{_A}v\d+(?:\.\d+)*{_Z}"  # a version
    rf"|(?<![\w&])\#\d+{_Z}"  # 123 of a tracker
)
_NUMBER = r"(?<!\d)\d{1,15}(?:[.,:'\u00a0\u202f]\d{1,9}|[ \u00a0\u202f]\d{3}(?!\d)){0,5}"
_COUNTED = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}"  # dates
    r"|\d{1,2}:\d{2}(?::\d{2})?(?:\s?(?:[ap]m|UTC|CET|Uhr|h))?(?!\w)|\d{1,2}\s?h\s?\d{2}(?!\w)"  # times
    rf"|[$€£¥₹₽₩]\s?{_NUMBER}(?:\s?(?:k|K|m|M|bn|million|billion))?"  # money
    rf"|{_NUMBER}\s?(?:%|‰|°[CF]?|[€£¥₹₽₩$]|[µμ]s|[A-Za-z]{{1,4}}[²³])"
    rf"|{_NUMBER}[ \u00a0\u202f-]?(?:(?![{DENSE}])[^\W\d_])[^\W\d_{DENSE}]*"  # 40 rules, 150ms, 48 млн, 3 часов
    rf"|{_NUMBER}\s?[{DENSE}]{{1,3}}"  # 2亿行, 30天, 12万行
    r"|[一二三四五六七八九十百千万亿两〇零億]+(?:个|位|人|元|块|年|月|日|号|点|分|秒|小时|天|周|次|倍|度|公里|米|公斤|克|行|页|条|台|円|時間|週間)"
    rf"|(?:PostgreSQL|MySQL|Python|Java|Node|Debian|Ubuntu|iOS|Android|Windows|article|Artikel|art\.|HTTP|port|Port|version|Version)\s\d[\d.]*"
)


def files(text: str) -> Iterator[str]:
    """File names and paths, in order; addresses on the net are none."""
    bare = _URL.sub(" ", text)
    for found in _PATH.finditer(bare):
        path = found[0].rstrip(".,;:")
        if len(path) > 2 and not _NO_PATH.match(path) and any(c.isalnum() for c in path):
            yield path


def facts(text: str) -> Iterator[str]:
    """Addresses, code in back quotes, identifiers, then numbers with units and dates."""
    for found in _URL.finditer(text):
        yield found[0]
    bare = _URL.sub(" ", text)
    for found in _SPAN.finditer(bare):
        yield found[1].strip()
    for found in _IDENTIFIER.finditer(bare):
        yield found[0].strip()
    for found in _COUNTED.finditer(bare):
        fact = found[0].strip().rstrip(".,:")
        number, _, unit = fact.partition(" ")
        if unit and is_stop(unit):  # "31 de", "2 and": no unit at all
            if sum(c.isdigit() for c in number) >= 3:
                yield number
        else:
            yield fact
