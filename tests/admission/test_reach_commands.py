"""`isochrone reach import` from the outside."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from admission.cli import app, main
from topology.bad_input import BadInput

OSU = "# OSU MPI-CUDA Latency Test v7.5\n# Size       Avg Latency(us)\n65536  18.42\n131072 3"


def test_it_prints_a_row_a_value_and_says_what_was_damaged(tmp_path: Path) -> None:
    file = tmp_path / "osu.log.gz"
    file.write_bytes(gzip.compress((OSU + "\n262144\n").encode()))
    done = CliRunner().invoke(app, ["reach", "import", str(file)])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{file}: osu",
        "  line  from  to  size     time     statistic  p99 one way  count  measured  transport  direction",
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


def save(file: Path, *files: str) -> list[str]:
    ends = ["--time", "2026-11-30T10:00:00Z", "--from", "leaf:l1", "--to", "leaf:l2"]
    return ["reach", "import", *files, "--save", str(file), *ends]


def test_what_is_saved_and_what_not_is_said_and_labelled(tmp_path: Path) -> None:
    osu, saved = tmp_path / "osu.log", tmp_path / "reach.json"
    rows = "".join(f"{2**power}  {power + 1}\n" for power in range(24))  # 1 B to 8 MiB; 512 B to 8 MiB stay
    osu.write_text("# OSU MPI-CUDA Latency Test v7.5\n# Size       Avg Latency(us)\n" + rows)
    done = CliRunner().invoke(app, save(saved, str(osu)), catch_exceptions=False)
    value = f"{osu} to {saved}: 15 of 24 values saved, of 1 pair"
    why = (
        "; 9 left out, which would change no reach: of a pair one size an octave stays, the 15 nearest to a page of "
        "64 KiB, of one size the slowest, and one bandwidth"
    )
    assert done.stdout.splitlines()[-1] == value + why
    entries = json.loads(saved.read_text())["measured"]
    assert [entry["sizeBytes"] for entry in entries] == [2**power for power in range(9, 24)]
    assert {(entry["us"], entry["percentile"]) for entry in entries} >= {(15.0, "mean x1.5")}  # 512 B took 10 us
    done = CliRunner().invoke(app, [*save(saved, str(osu)), "-o", "json"], catch_exceptions=False)
    assert json.loads(done.stdout)[0]["pairs"][9]["reachFrom"] == "mean x1.5"
    assert done.stderr == f"{value}, 1 of them in place of what the file held{why}\n"


def test_one_bad_file_of_three_hides_no_other_and_nothing_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would be cut in what is said
    osu, none, bad, saved = (Path(name) for name in ("osu.log", "none.log", "bad.log", "reach.json"))
    osu.write_text(OSU)
    bad.write_text("hello")
    monkeypatch.setattr(sys, "argv", ["isochrone", *save(saved, str(none), str(bad), str(osu))])
    with pytest.raises(SystemExit) as left:
        main()
    value = capsys.readouterr()
    assert (left.value.code, value.out.splitlines()[0], len(value.out.splitlines())) == (2, f"{osu}: osu", 5)
    first, second, third = value.err.splitlines()
    assert first == f"isochrone: FILE is {str(none)!r}; it must be a readable file: No such file or directory"
    assert second == f"isochrone: {saved}: nothing was saved"
    assert third.startswith(f"isochrone: {bad}: line 1 is 'hello'")
    assert not saved.exists()


def test_bad_input_is_one_line_and_code_2() -> None:
    command = [sys.executable, "-m", "admission.cli", "reach", "import", "-"]
    done = subprocess.run(command, input="hello\n", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("isochrone: -: line 1 is 'hello'; it is no output of")
    assert done.stderr.count("\n") == 1
