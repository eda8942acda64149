"""A QR code for a terminal, by ISO/IEC 18004: bytes, correction level L, versions 1 to 10 (271 bytes at most)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

Grid = list[list[bool]]

# version → bytes of correction of each block, bytes of data of each block, centres of the alignment patterns
_VERSIONS: dict[int, tuple[int, Sequence[int], Sequence[int]]] = {
    1: (7, (19,), ()),
    2: (10, (34,), (6, 18)),
    3: (15, (55,), (6, 22)),
    4: (20, (80,), (6, 26)),
    5: (26, (108,), (6, 30)),
    6: (18, (68, 68), (6, 34)),
    7: (20, (78, 78), (6, 22, 38)),
    8: (24, (97, 97), (6, 24, 42)),
    9: (30, (116, 116), (6, 26, 46)),
    10: (18, (68, 68, 69, 69), (6, 28, 50)),
}
_MASKS: tuple[Callable[[int, int], bool], ...] = (
    lambda row, column: (row + column) % 2 == 0,
    lambda row, column: row % 2 == 0,
    lambda row, column: column % 3 == 0,
    lambda row, column: (row + column) % 3 == 0,
    lambda row, column: (row // 2 + column // 3) % 2 == 0,
    lambda row, column: row * column % 2 + row * column % 3 == 0,
    lambda row, column: (row * column % 2 + row * column % 3) % 2 == 0,
    lambda row, column: ((row + column) % 2 + row * column % 3) % 2 == 0,
)
_LEVEL_L = 1
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
    """The modules of a text's code (True: dark), in the mask that the standard's penalties prefer; [] if it is too long."""
    data = text.encode()
    version = next((one for one in _VERSIONS if len(data) <= _room(one)), None)
    if version is None:
        return []
    bits = "".join(f"{byte:08b}" for byte in codewords(data, version))
    grids = [_masked(version, bits, number) for number in range(8)]
    return min(grids, key=penalty)


def _room(version: int) -> int:
    """How many bytes fit: the mode takes four bits, the length 8 or 16."""
    return sum(_VERSIONS[version][1]) - (2 if version < 10 else 3)


# ------------------------------------------------------------------------------------------------ data and correction


def codewords(data: bytes, version: int) -> list[int]:
    """Everything that is drawn, in order: blocks of data and of correction, interleaved."""
    extra, sizes, _ = _VERSIONS[version]
    bits = "0100" + f"{len(data):0{8 if version < 10 else 16}b}" + "".join(f"{byte:08b}" for byte in data)
    total = sum(sizes)
    bits = (bits + "0000")[: total * 8]
    bits += "0" * (-len(bits) % 8)
    words = [int(bits[place : place + 8], 2) for place in range(0, len(bits), 8)]
    words += [(0xEC, 0x11)[number % 2] for number in range(total - len(words))]
    blocks, place = [], 0
    for size in sizes:
        blocks.append(words[place : place + size])
        place += size
    corrections = [correction(block, extra) for block in blocks]
    return [*_interleaved(blocks), *_interleaved(corrections)]


def _interleaved(blocks: Sequence[Sequence[int]]) -> Iterator[int]:
    for place in range(max(map(len, blocks))):
        for block in blocks:
            if place < len(block):
                yield block[place]


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


def checked(value: int, generator: int, width: int) -> int:
    """A number with the remainder of a BCH code behind it."""
    rest = value << width
    for place in range(rest.bit_length() - 1, width - 1, -1):
        if rest >> place & 1:
            rest ^= generator << (place - width)
    return value << width | rest


def format_bits(mask: int) -> int:
    """The 15 bits that tell the level and the mask."""
    return checked(_LEVEL_L << 3 | mask, 0x537, 10) ^ 0x5412


# ------------------------------------------------------------------------------------------------ drawing


def _masked(version: int, bits: str, mask: int) -> Grid:
    size = 17 + 4 * version
    grid: list[list[bool | None]] = [[None] * size for _ in range(size)]
    _patterns(grid, version)
    _formats(grid, version, mask)
    stream = iter(bits)
    for row, column in _places(size):
        if grid[row][column] is None:
            dark = next(stream, "0") == "1"
            grid[row][column] = dark != _MASKS[mask](row, column)
    return [[bool(module) for module in line] for line in grid]


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


def _patterns(grid: list[list[bool | None]], version: int) -> None:
    size = len(grid)
    for top, left in ((0, 0), (0, size - 7), (size - 7, 0)):
        for row in range(max(0, top - 1), min(size, top + 8)):
            for column in range(max(0, left - 1), min(size, left + 8)):
                far = max(abs(row - top - 3), abs(column - left - 3))
                grid[row][column] = far not in (2, 4)
    for place in range(8, size - 8):
        grid[6][place] = grid[place][6] = place % 2 == 0
    centres = _VERSIONS[version][2]
    for middle in centres:
        for centre in centres:
            if (middle, centre) in ((6, 6), (6, size - 7), (size - 7, 6)):
                continue
            for row in range(middle - 2, middle + 3):
                for column in range(centre - 2, centre + 3):
                    grid[row][column] = max(abs(row - middle), abs(column - centre)) != 1


def _formats(grid: list[list[bool | None]], version: int, mask: int) -> None:
    size, told = len(grid), format_bits(mask)
    for place in range(15):
        dark = bool(told >> place & 1)
        if place < 6:
            grid[place][8] = dark
        elif place < 8:
            grid[place + 1][8] = dark
        else:
            grid[size - 15 + place][8] = dark
        if place < 8:
            grid[8][size - 1 - place] = dark
        else:
            grid[8][7 if place == 8 else 14 - place] = dark
    grid[size - 8][8] = True
    if version >= 7:
        about = checked(version, 0x1F25, 12)
        for place in range(18):
            dark = bool(about >> place & 1)
            grid[place // 3][size - 11 + place % 3] = grid[size - 11 + place % 3][place // 3] = dark


def penalty(grid: Grid) -> int:
    """How hard a code is to read, by the standard's four rules."""
    size, total = len(grid), 0
    for lines in (grid, list(zip(*grid, strict=True))):
        for line in lines:
            text = "".join("1" if module else "0" for module in line)
            run = 1
            for place in range(1, size + 1):
                if place < size and text[place] == text[place - 1]:
                    run += 1
                    continue
                total += run - 2 if run >= 5 else 0
                run = 1
            for place in range(size - 10):
                total += 40 * (text[place : place + 11] in ("10111010000", "00001011101"))
    for row in range(size - 1):
        for column in range(size - 1):
            square = {grid[row][column], grid[row][column + 1], grid[row + 1][column], grid[row + 1][column + 1]}
            total += 3 * (len(square) == 1)
    dark = sum(map(sum, grid)) * 100 / size**2
    return total + 10 * int(abs(dark - 50) // 5)
