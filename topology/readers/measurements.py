"""Reads a measuring tool's output, whichever it is, by what stands in it; the text and the file's name; a Readout.

It knows which reader is whose and nothing of their formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from topology.bad_input import BadInput
from topology.reach.measurement import Readout
from topology.readers.nccl_tests import is_nccl_tests, read_nccl_tests
from topology.readers.numbers_in_text import lines_of
from topology.readers.osu import is_osu, read_osu
from topology.readers.p2p_matrix import is_p2p_matrix, read_p2p_matrix
from topology.readers.perftest import is_perftest, read_perftest
from topology.readers.profiled_table import is_profiled_table, read_profiled_table

KNOWN: Final = "nccl-tests, OSU, perftest, p2pBandwidthLatencyTest, nvbandwidth, gpu-copy or a profiled CSV table"
PARQUET: Final = "PAR1"

_READERS: Final[tuple[tuple[Callable[[Sequence[str]], bool], Callable[[str, str], Readout]], ...]] = (
    (is_nccl_tests, read_nccl_tests),
    (is_perftest, read_perftest),
    (is_osu, read_osu),
    (is_p2p_matrix, read_p2p_matrix),
    (is_profiled_table, read_profiled_table),
)


def read_measurements(text: str, name: str = "", operation: str = "") -> Readout:
    """What one output holds. `operation` says which nccl-tests program ran, where neither text nor name does.

    Raises BadInput with one sentence: no known tool, nothing measured, too long, binary.
    """
    if text.startswith(PARQUET):
        raise BadInput("line 1", PARQUET, "Parquet is binary and not read here: export the table as CSV")
    lines = lines_of(text)
    for recognises, read in _READERS:
        if recognises(lines):
            return read_nccl_tests(text, name, operation) if read is read_nccl_tests else read(text, name)
    first = next((line.strip() for line in lines if line.strip()), "")
    at = next((at for at, line in enumerate(lines, start=1) if line.strip()), 1)
    raise BadInput(f"line {at}", first[:80], f"it is no output of {KNOWN}")
