"""python -m plkernel.corpus: a table and a JSON that agree, and refusals in one line."""

import json
import math
import re
import subprocess
import sys

import pytest

from plkernel.commands.corpus import corpus
from plkernel.common import cli


def test_the_table_and_the_json_agree(tmp_path, capsys):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a").write_bytes(b"aabb" * 50)
    (folder / "b").write_bytes(b"ccdd" * 50)
    cli.main(corpus, [str(folder), "--separator", r"\x61", "--out", str(tmp_path / "out.json")])
    rows = dict(re.findall(r"^(\w+(?: \w+)?)  +(\S.*)$", capsys.readouterr().out, re.MULTILINE))
    saved = json.loads((tmp_path / "out.json").read_text())
    assert (rows["size"], rows["documents"]) == ("401 bytes", "2")
    assert (rows["sha256"], rows["cache"]) == (saved["sha256"], saved["path"])
    shares = [101 / 401, 100 / 401, 100 / 401, 100 / 401]
    expected = -sum(share * math.log2(share) for share in shares)
    assert saved["unigram_entropy_bits_per_byte"] == pytest.approx(expected, rel=1e-12)
    assert rows["unigram entropy"] == f"{expected:.4f} bits per byte"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stdlb"], "did you mean 'stdlib'"),
        (["stdlib", "--separator", "ab"], "separator 'ab': must be one byte"),
        (["stdlib", "--max-bytes", "0"], "max_bytes = 0"),
        (["stdlib", "--column", "text"], "stdlib has no columns"),
        (["none/such"], "no such file or folder"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        cli.main(corpus, [*arguments, "--out", str(tmp_path / "out.json")])
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not list(tmp_path.iterdir())


def test_the_command_runs_as_a_module(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abab")
    command = [sys.executable, "-m", "plkernel.corpus", str(tmp_path / "a.txt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1.0000 bits per byte" in done.stdout
