"""A QR code for a terminal, by ISO/IEC 18004: bytes, correction level L, mask 0, versions 1 to 6 (134 bytes at most).

The standard recommends the mask that is easiest to read; readers take any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Grid = list[list[bool]]

# version → bytes of data, bytes of correction in each block, number of blocks
_VERSIONS = {1: (19, 7, 1), 2: (34, 10, 1), 3: (55, 15, 1), 4: (80, 20, 1), 5: (108, 26, 1), 6: (136, 18, 2)}
_FORMAT = 0b111011111000100  # level L and mask 0, with their correction
_QUIET = 2  # empty modules around it; readers want some


def drawn(text: str) -> str:
    """The code of a text in block characters, dark on light; "" if the text is too long for one."""
    grid = matrix(text)
    if not grid:
        return ""
    size = len(grid) + 2 * _QUIET
    rows = [[False] * size for _ in range(size + size % 2)]
    for number, row in enumerate(grid):
        rows[number + _QUIET][_QUIET : _QUIET + len(row)] = row
    pairs = zip(rows[::2], rows[1::2], strict=True)
    signs = {(False, False): "█", (False, True): "▀", (True, False): "▄", (True, True): " "}  # for dark terminals
    return "\n".join("".join(signs[pair] for pair in zip(*two, strict=True)) for two in pairs)


def matrix(text: str) -> Grid:
    """The modules of a text's code (True: dark); [] if it is too long."""
    data = text.encode()
    version = next((one for one, (room, _, _) in _VERSIONS.items() if len(data) <= room - 2), None)
    if version is None:
        return []
    size = 17 + 4 * version
    grid: list[list[bool | None]] = [[None] * size for _ in range(size)]
    _patterns(grid)
    stream = iter("".join(f"{byte:08b}" for byte in codewords(data, version)))
    for row, column in _places(size):
        if grid[row][column] is None:
            dark = next(stream, "0") == "1"
            grid[row][column] = dark != ((row + column) % 2 == 0)
    return [[bool(module) for module in line] for line in grid]


def codewords(data: bytes, version: int) -> list[int]:
    """Everything that is drawn, in order: blocks of data and of correction, interleaved."""
    total, extra, count = _VERSIONS[version]
    bits = f"0100{len(data):08b}" + "".join(f"{byte:08b}" for byte in data) + "0000"
    words = [int(bits[place : place + 8], 2) for place in range(0, len(bits), 8)]
    words += [(0xEC, 0x11)[number % 2] for number in range(total - len(words))]
    size = total // count
    blocks = [words[place : place + size] for place in range(0, total, size)]
    corrections = [correction(block, extra) for block in blocks]
    return [word for parts in (blocks, corrections) for group in zip(*parts, strict=True) for word in group]


def _product(one: int, other: int) -> int:
    """A product in the field of 256 elements by x⁸ + x⁴ + x³ + x² + 1."""
    found = 0
    while other:
        if other & 1:
            found ^= one
        one <<= 1
        if one & 0x100:
            one ^= 0x11D
        other >>= 1
    return found


def correction(data: Sequence[int], count: int) -> list[int]:
    """The Reed-Solomon code of a block."""
    generator, root = [1], 1
    for _ in range(count):
        shifted = [*generator, 0]
        for place, factor in enumerate(generator):
            shifted[place + 1] ^= _product(factor, root)
        generator, root = shifted, _product(root, 2)
    rest = [0] * count
    for word in data:
        lead = word ^ rest[0]
        rest = [*rest[1:], 0]
        rest = [one ^ _product(factor, lead) for one, factor in zip(rest, generator[1:], strict=True)]
    return rest


def _places(size: int) -> Iterator[tuple[int, int]]:
    """The order in which data is drawn: columns in pairs from the right, up and down, without the timing column."""
    up, right = True, size - 1
    while right > 0:
        for step in range(size):
            row = size - 1 - step if up else step
            yield row, right
            yield row, right - 1
        up, right = not up, right - 2
        if right == 6:
            right = 5


def _patterns(grid: list[list[bool | None]]) -> None:
    """Draw what every code of this size has: three corners, their dotted lines, a small square, and the format."""
    size = len(grid)
    for top, left in ((0, 0), (0, size - 7), (size - 7, 0)):
        for row in range(max(0, top - 1), min(size, top + 8)):
            for column in range(max(0, left - 1), min(size, left + 8)):
                far = max(abs(row - top - 3), abs(column - left - 3))
                grid[row][column] = far not in (2, 4)
    for place in range(8, size - 8):
        grid[6][place] = grid[place][6] = place % 2 == 0
    for row in range(size - 9, size - 4) if size > 21 else ():
        for column in range(size - 9, size - 4):
            grid[row][column] = max(abs(row - size + 7), abs(column - size + 7)) != 1
    for place in range(15):
        dark = bool(_FORMAT >> place & 1)
        grid[place if place < 6 else place + 1 if place < 8 else size - 15 + place][8] = dark
        grid[8][size - 1 - place if place < 8 else 7 if place == 8 else 14 - place] = dark
    grid[size - 8][8] = True
