"""Reads what `nvidia-smi topo -m` prints: a matrix of GPUs and NICs, affinity columns, a legend of NIC names.

People paste this text: with colour codes, without the leading tab, wrapped by a terminal, with columns glued together
or the end cut off. What can be read in one way only is read, with a warning; everything else is refused with its line.
The matrix says each pair twice, which is what makes a damaged one detectable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from topology.graph.link_types import ALLOWED, SELF, SYS, UNKNOWN, agreed, nvlinks, word_of
from topology.graph.parts import GraphPart, PartKind, Topology, TopologyBuilder, bad, check_name

SOURCE: Final = "nvidia-smi topo -m"
MAX_DEVICES: Final = 256
MAX_LINES: Final = 2_000
MAX_LINE_CHARS: Final = 16_384
MAX_NUMA: Final = 4_095

_COLOUR = re.compile(r"\x1b?\[[0-9;]{0,9}m")  # the escape byte itself is often lost when text is copied
_COLUMNS = re.compile(r"CPU[ \t]+Affinity|NUMA[ \t]+Affinity|GPU[ \t]+NUMA[ \t]+ID")
_GPU = re.compile(r"GPU\d{1,4}", re.ASCII)
_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,62}", re.ASCII)
_GLUED_NAMES = re.compile(r"(?:(?:GPU|NIC)\d{1,4}){2,64}", re.ASCII)
_ONE_NAME = re.compile(r"(?:GPU|NIC)\d{1,4}", re.ASCII)
_ONE_CELL = re.compile(r"NV\d{1,2}|X|C2C|PIX|PXB|PHB|NODE|SYS|SOC", re.ASCII)
_GLUED_CELLS = re.compile(r"(?:NV\d{1,2}|X|C2C|PIX|PXB|PHB|NODE|SYS|SOC){2,64}", re.ASCII)
_CPU_LIST = re.compile(r"[0-9][0-9,-]{0,4000}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,4}", re.ASCII)
_WORD = re.compile(r"\S+")
_LEGEND = re.compile(r"\s*(NIC\d{1,4}):\s*(\S+)\s*", re.ASCII)
_BROKEN: Final = 6  # so many ends of lines are tried both ways
_MAYBE: Final = "\0"  # between two digits that a line's end may have torn apart or kept apart
_CPU, _NUMA, _OWN = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"


@dataclass(slots=True)
class _Row:
    """One row as read; `text` grows while wrapped lines are joined."""

    name: str
    line: int
    text: str
    cells: tuple[str, ...] = ()
    tail: str = ""
    cut: bool = False


def recognises(line: str) -> bool:
    """Whether this line could be the header of the matrix."""
    return "GPU" in line and _header(_COLOUR.sub("", line), whole=False) is not None


def read(text: str) -> Topology:
    """The topology of one machine. Raises BadInput with line and reason."""
    lines = text.replace("\r\n", "\n").replace(_MAYBE, " ").split("\n")
    if len(lines) > MAX_LINES:
        raise bad(MAX_LINES, "number of lines", len(lines), f"at most {MAX_LINES} are read")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_CHARS:
            raise bad(number, "length", len(line), f"a line has at most {MAX_LINE_CHARS} characters")
    lines = [_COLOUR.sub("", line) if "[" in line else line for line in lines]
    top = next((i for i, line in enumerate(lines) if recognises(line)), None)
    if top is None:
        raise bad(1, "header", lines[0].strip(), "a line that names the columns GPU0, GPU1, ... is missing")
    build = TopologyBuilder(SOURCE)
    names, columns, first = _whole_header(lines, top, build)
    rows, end = _rows(lines, first, frozenset(names), build)
    devices = _legend(lines[end:], end + 1)
    for position, row in enumerate(rows):
        _split(row, len(names), columns, build, last=position == len(rows) - 1)
    _parts(names, rows, columns, devices, build, open_end=end == len(lines) and bool(lines[-1]))
    _links(names, rows, build)
    return build.build()


def _header(line: str, *, whole: bool = True) -> tuple[list[str], list[str]] | None:
    """Names and affinity columns of a header line, None if it is none; `whole` refuses what a wrap tore apart."""
    columns = _COLUMNS.search(line)
    tokens = (line[: columns.start()] if columns else line).split()
    if not tokens or not (_GPU.fullmatch(tokens[0]) or _GLUED_NAMES.fullmatch(tokens[0])):
        return None
    if len(tokens) > MAX_DEVICES or any(word_of(word) for word in tokens):
        return None
    if not all(_DEVICE.fullmatch(word) for word in tokens):
        return None
    if whole and columns and _COLUMNS.sub("", line[columns.start() :]).strip():
        return None
    return tokens, [" ".join(found.split()) for found in _COLUMNS.findall(line)]


def _whole_header(lines: Sequence[str], top: int, build: TopologyBuilder) -> tuple[list[str], list[str], int]:
    """The header with the lines that a terminal wrapped it into, and where the rows begin."""
    end = top + 1
    while end < len(lines) and end < top + 40 and lines[end].strip() and not _starts_row(lines[end]):
        end += 1
    found = _joined_header(lines[top:end])
    if found is None:
        allowed = "it names devices, then perhaps CPU Affinity, NUMA Affinity, GPU NUMA ID; rows follow"
        raise bad(top + 1, "header", " ".join(lines[top].split()), allowed)
    if end > top + 1:
        build.warn(f"line {top + 1}: the header is wrapped over {end - top} lines; joined")
    names: list[str] = []
    for word in found[0]:
        parts = _ONE_NAME.findall(word) if _GLUED_NAMES.fullmatch(word) else [word]
        if len(parts) > 1:
            build.warn(f"line {top + 1}: {word} is read as {' and '.join(parts)}, columns without a gap")
        names += parts
    for name in names:
        check_name(name, top + 1)
        if names.count(name) > 1:
            raise bad(top + 1, "column", name, "it is there twice; every device has one column")
    if len(names) > MAX_DEVICES:
        raise bad(top + 1, "number of columns", len(names), f"at most {MAX_DEVICES} are read")
    return names, found[1], end


def _joined_header(pieces: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The header from its lines: where nothing was torn apart each end of a line stands for a space."""
    gaps = len(pieces) - 1
    for glues in product((" ", ""), repeat=gaps) if gaps <= _BROKEN else ((" ",) * gaps, ("",) * gaps):
        found = _header(pieces[0] + "".join(glue + piece for glue, piece in zip(glues, pieces[1:], strict=True)))
        if found is None:
            continue
        if not gaps or (len({*found[0]}) == len(found[0]) and all(name[-1].isdigit() for name in found[0])):
            return found  # else a name was torn: NI C0, NIC1 0
    return None


def _starts_row(line: str) -> bool:
    tokens = line.split(None, 2)
    if len(tokens) < 2 or not _DEVICE.fullmatch(tokens[0]) or word_of(tokens[0]):
        return False
    return bool(_cells_of(tokens[1]))


def _cells_of(word: str) -> list[str]:
    """The cells in one word: one, several without a gap, or none."""
    if (cell := word_of(word)) is not None:
        return [cell]
    return [word_of(cell) or UNKNOWN for cell in _ONE_CELL.findall(word)] if _GLUED_CELLS.fullmatch(word) else []


def _glue(before: str, after: str) -> str:
    """What a terminal swallowed between two lines: nothing where it tore a cell apart (NV1 8), else a space."""
    left, right = before.rsplit(None, 1)[-1:], after.split(None, 1)[:1]
    if not left or not right or before[-1].isspace() or after[0].isspace():
        return " "
    if _cells_of(left[0] + right[0]) and not (_cells_of(left[0]) and _cells_of(right[0])):
        return ""
    if before[-1] in ",-" or after[0] in ",-":
        return ""  # inside a list of CPUs
    return _MAYBE if before[-1].isdigit() and after[0].isdigit() else " "


def _goes_on(lines: Sequence[str], names: frozenset[str]) -> bool:
    """Whether rows follow behind a blank line: one of spaces alone is what a terminal makes of a long row's end."""
    following = next((line for line in lines[:16] if line.strip()), "")
    return _starts_row(following) and following.split(None, 1)[0] in names


def _whole(row: _Row, wanted: int) -> bool:
    return sum(len(_cells_of(word)) for word in row.text.split()) >= wanted


def _continues(row: _Row, line: str, wanted: int) -> bool:
    """Whether a line can be the wrapped end of a row."""
    return len(row.text) + len(line) <= MAX_LINE_CHARS and not (_starts_row(line) and _whole(row, wanted))


def _rows(lines: Sequence[str], first: int, names: frozenset[str], build: TopologyBuilder) -> tuple[list[_Row], int]:
    """The rows up to the blank line that ends the table, and where it ended."""
    rows: list[_Row] = []
    at = first
    for at in range(first, len(lines)):
        line = lines[at]
        word = line.split(None, 1)
        if not word:
            if rows and not _goes_on(lines[at + 1 :], names):
                break
            continue
        if word[0] in names:
            if any(row.name == word[0] for row in rows):
                raise bad(at + 1, "row", word[0], "it is there twice; every device has one row")
            rows.append(_Row(word[0], at + 1, word[1] if len(word) > 1 else ""))
        elif word[0].startswith("Legend"):
            break
        elif not rows or not _continues(rows[-1], line, len(names)):
            raise bad(at + 1, "row", word[0], "the header has no column of that name")
        else:
            build.warn(f"line {at + 1}: joined to the row of {rows[-1].name}, wrapped there")
            rows[-1].text += _glue(rows[-1].text, line) + line
    else:
        at = len(lines)
    if not rows:
        raise bad(first + 1, "matrix", "no row", "a row begins with the name of a device")
    return rows, at


def _split(row: _Row, wanted: int, columns: Sequence[str], build: TopologyBuilder, *, last: bool) -> None:
    """Cuts a row into its cells and what stands behind them."""
    cells: list[str] = []
    for match in _WORD.finditer(row.text):
        if len(cells) == wanted:
            row.tail = row.text[match.start() :]
            break
        found = _cells_of(match[0])
        if not found and last and match.end() == len(row.text.rstrip()):
            break  # the word that the cut went through
        if not found:
            raise bad(row.line, f"cell {len(cells) + 1} of {row.name}", match[0], ALLOWED)
        if len(found) > 1:
            build.warn(f"line {row.line}: {match[0]} is read as {' and '.join(found)}, columns without a gap")
        cells += found
    if len(cells) > wanted or (row.tail and word_of(row.tail.split()[0]) not in (None, UNKNOWN)):
        raise bad(row.line, f"row of {row.name}", "too long", f"the header names {wanted} columns")
    if len(cells) < wanted and not last:
        raise bad(row.line, f"row of {row.name}", f"{len(cells)} cells", f"the header names {wanted} columns")
    if row.tail.strip() and not columns:
        raise bad(row.line, f"row of {row.name}", row.tail.strip(), "the header names no affinity column")
    row.cut = len(cells) < wanted
    row.cells = tuple(cells)


def _affinity(row: _Row, columns: Sequence[str]) -> dict[str, str]:
    """Column to text. Where a field is empty (Windows, some guests), only the N/A of GPU NUMA ID stands there."""
    tokens = row.tail.replace(_MAYBE, " ").split()
    if len(tokens) != len(columns) and _MAYBE in row.tail:
        tokens = row.tail.replace(_MAYBE, "").split()
    if len(tokens) > len(columns):
        raise bad(row.line, f"row of {row.name}", " ".join(tokens), f"behind the cells stand {', '.join(columns)}")
    if len(tokens) < len(columns) and tokens and tokens[-1] == "N/A" and columns[-1] == _OWN:
        return {**dict(zip(columns, tokens[:-1], strict=False)), _OWN: "N/A"}
    return dict(zip(columns, tokens, strict=False))


def _numa(row: _Row, value: str, build: TopologyBuilder) -> int | None:
    if value in ("", "N/A"):
        return None
    if _NUMBER.fullmatch(value):
        return int(value) if 0 <= int(value) <= MAX_NUMA else None
    if _CPU_LIST.fullmatch(value):
        build.warn(f"line {row.line}: {row.name} is near several NUMA nodes ({value}); its own is unknown")
        return None
    raise bad(row.line, f"NUMA affinity of {row.name}", value, "it is a number, a list like 0-3, or N/A")


def _warn_of_missing_rows(names: Sequence[str], rows: Sequence[_Row], build: TopologyBuilder) -> bool:
    """Whether the table is cut off; a warning about that, else about each device without a row."""
    there = {row.name for row in rows}
    missing = [name for name in names if name not in there]
    cut = rows[-1].cut or any(_GPU.fullmatch(name) for name in missing)
    if not cut:
        for name in missing:
            build.warn(f"{name} has no row of its own; its links are taken from the other rows")
        return False
    more = ", ..." if missing[3:] else ""
    lost = f", rows of {len(missing)} devices ({', '.join(missing[:3])}{more}) are missing" if missing else ""
    build.warn(
        f"line {rows[-1].line}: the table is cut off in or after the row of {rows[-1].name}"
        f"{lost}; what only they would say is unknown"
    )
    return True


def _near(row: _Row, columns: Sequence[str], build: TopologyBuilder, *, at_cut: bool) -> tuple[int | None, str]:
    """NUMA node and CPUs of a row; of a list that was cut, which still looks like one, none."""
    if not row.tail.strip():
        return None, ""
    value = _affinity(row, columns)
    cpus = value.get(_CPU, "").replace("N/A", "")
    if cpus and not _CPU_LIST.fullmatch(cpus):
        raise bad(row.line, f"CPU affinity of {row.name}", cpus, "it is a list like 0-23,48-71")
    numa = _numa(row, value.get(_NUMA, ""), build)
    return numa, "" if at_cut and list(value)[-1] == _CPU else cpus


def _part(name: str, numa: int | None, cpus: str, devices: dict[str, str]) -> GraphPart:
    """A GPU or an adapter; one that has no NIC number is its own device name."""
    kind = PartKind.GPU if _GPU.fullmatch(name) else PartKind.NIC
    inside = f"NUMA {numa}" if numa is not None else ""
    device = devices.get(name, "" if kind is PartKind.GPU or name.startswith("NIC") else name)
    return GraphPart(name, kind, inside, numa=numa, device=device, cpus=cpus)


def _parts(
    names: Sequence[str],
    rows: Sequence[_Row],
    columns: Sequence[str],
    devices: dict[str, str],
    build: TopologyBuilder,
    *,
    open_end: bool,
) -> None:
    by_name = {row.name: row for row in rows}
    cut = _warn_of_missing_rows(names, rows, build)
    found: list[GraphPart] = []
    for name in names:
        numa, cpus = None, ""
        if (row := by_name.get(name)) is not None:
            numa, cpus = _near(row, columns, build, at_cut=row is rows[-1] and (cut or open_end))
        found.append(_part(name, numa, cpus, devices))
    for numa in sorted({part.numa for part in found if part.numa is not None}):
        build.part(GraphPart(f"NUMA {numa}", PartKind.NUMA, numa=numa))
    for part in found:
        build.part(part)


def _links(names: Sequence[str], rows: Sequence[_Row], build: TopologyBuilder) -> None:
    position = {name: at for at, name in enumerate(names)}
    value: dict[tuple[int, int], str] = {}
    for row in rows:
        at = position[row.name]
        for to, cell in enumerate(row.cells):
            if (at == to) != (cell == SELF):
                here = f"{row.name} to {names[to]}"
                raise bad(row.line, here, cell, "X stands where row and column are the same device, and only there")
            pair = (min(at, to), max(at, to))
            before = value.get(pair)
            if before is None:
                # A cut can leave NV1 of NV18; every other word shows that it was cut.
                at_cut = row.cut and to == len(row.cells) - 1 and nvlinks(cell)
                value[pair] = UNKNOWN if at_cut else cell
            elif row.cut and to == len(row.cells) - 1 and before != UNKNOWN:
                continue  # the other row says it whole
            elif (both := agreed(before, cell)) is not None:
                if both != cell or both != before:
                    build.warn(f"line {row.line}: {row.name} to {names[to]} is {before} and {cell}; {both} is taken")
                value[pair] = both
            else:
                here = f"{row.name} to {names[to]}"
                raise bad(row.line, here, cell, f"the other way it is {before}; a matrix is the same both ways")
    _build_links(names, value, build)


def _build_links(names: Sequence[str], value: dict[tuple[int, int], str], build: TopologyBuilder) -> None:
    """Every pair's link, and a warning where SYS joins devices of one NUMA node."""
    odd = []
    for pair in _pairs(len(names)):
        a, b = names[pair[0]], names[pair[1]]
        word = value.get(pair, UNKNOWN)
        build.link(a, b, word)
        if word == SYS and build.parts[a].numa is not None and build.parts[a].numa == build.parts[b].numa:
            odd.append(f"{a} to {b}")
    if odd:
        build.warn(
            f"{len(odd)} pairs within one NUMA node are joined by SYS ({odd[0]}{', ...' if odd[1:] else ''}): the "
            "machine seems to hide its PCI tree or its NVLinks"
        )


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in range(count) for b in range(a + 1, count))


def _legend(lines: Sequence[str], first: int) -> dict[str, str]:
    """NIC names to device names, from `NIC0: mlx5_0`."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines, first):
        match = _LEGEND.fullmatch(line)
        if match is not None:
            check_name(match[2], number)
            if found.setdefault(match[1], match[2]) != match[2]:
                raise bad(number, match[1], match[2], f"it is {found[match[1]]} above")
    return found
