"""The classes' suffixes in blocks of rows that attention takes together, none computed twice.

A block holds the suffixes of several classes. That wastes a few products on pairs of rows that do not see each other,
but a few products of a good size are much faster than many tiny ones.
"""

from __future__ import annotations

from collections.abc import Sequence

# Rows of suffixes computed together in attention. Fewer make products too small to be fast, more waste work on
# pairs of rows that do not see each other.
_BLOCK_ROWS = 48


class Block:
    """Suffixes that are computed together: a small tree of positions, each behind the one it follows."""

    def __init__(self) -> None:
        self.classes: list[int] = []
        self.entries: list[int] = []  # what stands at each row
        self.paths: list[list[int]] = []  # the rows each row may see: those before it, and itself
        self.last: list[int] = []  # the row of each class's EOT
        self._row_of: dict[tuple[int, int], int] = {}  # (row before, what stands here) -> row

    def add(self, c: int, suffix: tuple[int, ...], limit: int) -> bool:
        """Take in a class; or, if there would be more than `limit` rows, leave everything and return False."""
        row, known = -1, 0
        while known < len(suffix) and (row, suffix[known]) in self._row_of:
            row = self._row_of[row, suffix[known]]
            known += 1
        if len(self.entries) + len(suffix) - known > limit:
            return False
        for entry in suffix[known:]:
            path = self.paths[row] if row >= 0 else []
            before, row = row, len(self.entries)
            self._row_of[before, entry] = row
            self.entries.append(entry)
            self.paths.append([*path, row])
        self.classes.append(c)
        self.last.append(row)
        return True

    def take(self, other: Block) -> None:
        """Take in all classes of another block, sharing nothing with them."""
        shift = len(self.entries)
        self.classes += other.classes
        self.entries += other.entries
        self.paths += [[shift + row for row in path] for path in other.paths]
        self.last += [shift + row for row in other.last]


def fill_blocks(suffixes: Sequence[tuple[int, ...]]) -> list[Block]:
    """Return the classes in blocks of bounded size, positions whose whole past is the same shared within a block.

    Causal: what a position computes depends on its past alone. So names that begin alike ("2012 BMW X3 SUV",
    "2012 BMW X6 SUV") share the rows of their common beginning.
    """
    longest = max(map(len, suffixes))
    best: list[Block] = []
    # Each block is as large as the largest, so some limits leave fewer rows that only fill up than others.
    for limit in range(max(_BLOCK_ROWS, longest), max(_BLOCK_ROWS // 2, longest) - 1, -1):
        blocks = _filled(suffixes, limit)
        if not best or _rows(blocks) < _rows(best):
            best = blocks
        if _rows(best) <= 1.01 * sum(len(block.entries) for block in best):
            break
    return best


def _filled(suffixes: Sequence[tuple[int, ...]], limit: int) -> list[Block]:
    pieces: list[Block] = []  # classes that begin alike
    # Neighbours in this order begin alike, and so share rows.
    for c in sorted(range(len(suffixes)), key=lambda c: suffixes[c]):
        alike = pieces and pieces[-1].entries[0] == suffixes[c][0]
        if not (alike and pieces[-1].add(c, suffixes[c], limit)):
            pieces.append(Block())
            pieces[-1].add(c, suffixes[c], limit)
    return _packed(pieces, limit)


def _rows(blocks: list[Block]) -> int:
    """Return how many rows the blocks have when all are as large as the largest."""
    return len(blocks) * max(len(block.entries) for block in blocks)


def _packed(pieces: list[Block], limit: int) -> list[Block]:
    """Return the pieces in few blocks of at most `limit` rows: the largest first, each where it leaves least room."""
    blocks: list[Block] = []
    with_room: list[list[Block]] = [[] for _ in range(limit + 1)]
    for piece in sorted(pieces, key=lambda piece: -len(piece.entries)):
        size = len(piece.entries)
        room = next((room for room in range(size, limit + 1) if with_room[room]), limit)
        if not with_room[room]:
            blocks.append(Block())
            with_room[room].append(blocks[-1])
        block = with_room[room].pop()
        block.take(piece)
        with_room[room - size].append(block)
    return blocks
