"""What each command imports: a search with an exported encoder needs no torch."""

import json
import subprocess
import sys

import pytest

from latelier.retrieve import Retriever

# Runs commands one after the other, and prints after each which slow packages and how many modules are imported.
COMMANDS = """
import json, sys
from latelier.cli import main

SLOW = "torch transformers sentence_transformers scipy pandas sklearn onnx rich tqdm".split()
FASTER = "onnxruntime tokenizers numpy sqlite3".split()
seen = []
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, arguments
    seen.append(([name for name in SLOW + FASTER if name in sys.modules], len(sys.modules)))
print(json.dumps(seen))
"""


def test_commands_import_what_they_use(tiny, tmp_path, monkeypatch):
    """In one process, as each takes seconds: a command that imports more than its own part would show in the next."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    monkeypatch.setenv("LATELIER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "index"
    with Retriever(tiny, folder, device="cpu") as retriever:
        retriever.add([("a", "Bananas are healthy."), ("b", "The moon is far away.")])
        retriever.export_encoder()
        expected = retriever.search("bananas", k=1)[0]
    page = str(tmp_path / "page.html")
    commands = [["--version"], ["index", "--help"], ["info", str(folder)]]
    commands += [["search", str(folder), "bananas", "--mode", "keywords"]]
    commands += [["explain", str(folder), "bananas", "a", "--html", page], ["search", str(folder), "bananas", "--json"]]
    process = subprocess.run([sys.executable, "-c", COMMANDS, json.dumps(commands)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    version, help_, info, keywords, explain, search = json.loads(process.stdout.splitlines()[-1])
    assert version[0] == help_[0] == info[0] == keywords[0] == ["numpy", "sqlite3"]
    assert explain[0] == search[0] == ["onnxruntime", "tokenizers", "numpy", "sqlite3"]
    assert search[1] < 700  # 5,000 with torch
    found = json.loads(process.stdout[process.stdout.index('{\n  "query"') : process.stdout.rindex("}") + 1])
    assert found["results"][0]["id"] == expected.id
    assert found["results"][0]["score"] == pytest.approx(expected.score, abs=1e-4)


def test_importing_sub_packages_imports_no_torch():
    code = "import sys, latelier.retrieve, latelier.indexes, latelier.scores, latelier.models, latelier.embeddings;"
    code += "latelier.retrieve.Retriever; print(*[n for n in ('torch', 'transformers') if n in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == []
