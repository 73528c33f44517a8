"""`isochrone reach import` from the outside."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from admission.cli import app
from topology.bad_input import BadInput

OSU = "# OSU MPI-CUDA Latency Test v7.5\n# Size       Avg Latency(us)\n65536  18.42\n131072 3"


def test_it_prints_a_row_a_value_and_says_what_was_damaged(tmp_path: Path) -> None:
    file = tmp_path / "osu.log.gz"
    file.write_bytes(gzip.compress((OSU + "\n262144\n").encode()))
    done = CliRunner().invoke(app, ["reach", "import", str(file)])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{file}: osu",
        "  line  from  to  size     time     statistic  p99 one way  count  measured  transport",
        "  3     -     -   64 KiB   18.4 us  mean       27.6 us *    -      -         -          one way",
        "  4     -     -   128 KiB  3 us     mean       4.5 us *     -      -         -          one way",
        "  * from a median or mean, widened by 1.5",
    ]
    assert done.stderr == f"isochrone: {file}: line 5: a row that is cut or damaged was left out: '262144'\n"


def test_json_has_null_for_what_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "osu.log"
    file.write_text(OSU)
    done = CliRunner().invoke(app, ["reach", "import", "-o", "json", str(file), str(file)])
    first, second = json.loads(done.stdout)
    assert first == second
    pair = first["pairs"][0]
    assert (pair["sizeBytes"], pair["meanUs"], pair["p99Us"], pair["reachUs"]) == (65536, 18.42, None, 18.42 * 1.5)
    assert (pair["direction"], pair["time"], pair["from"]) == ("one way", None, {"node": "", "gpu": None})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"hello", ": line 1 is 'hello'; it is no output of nccl-tests"),
        (b"\x1f\x8b\x08nonsense", "it must be a readable file"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        CliRunner().invoke(app, ["reach", "import", str(file)], catch_exceptions=False)
    with pytest.raises(BadInput, match="it must be a readable file: No such file"):
        CliRunner().invoke(app, ["reach", "import", str(tmp_path / "none")], catch_exceptions=False)


def test_bad_input_is_one_line_and_code_2() -> None:
    command = [sys.executable, "-m", "admission.cli", "reach", "import", "-"]
    done = subprocess.run(command, input="hello\n", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("isochrone: -: line 1 is 'hello'; it is no output of")
    assert done.stderr.count("\n") == 1
