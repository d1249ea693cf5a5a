"""What the planning command line refuses: a table of command lines a kind of model, and whatever lacks memory."""

import json
from pathlib import Path

import pytest

from solver.cli import main
from solver.cluster.cluster import write_cluster
from tests.kit import inside, refusals
from tests.kit.clusters import pair

TABLES = Path(__file__).with_name("refusals")
PLANS = {
    "encoder": ["--model", "bert-base", "--layers", "3", "--cluster", "cluster.toml", "--system", "megatron"],
    "single": ["--model", "bert-base", "--cluster", "mixed4", "--system", "single"],
    "network": ["--model", "resnet18", "--cluster", "mixed4", "--system", "modnn"],
    "decoder": ["--model", "llama-3.2-1b", "--layers", "4", "--cluster", "mixed4"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a cluster, files that are none, plans, and plans of models that no name says."""
    folder = tmp_path_factory.mktemp("refusals")
    write_cluster(pair(), folder / "cluster.toml")
    (folder / "empty.toml").touch()
    (folder / "bytes.toml").write_bytes(b"ab\xff")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, words in PLANS.items():
            assert inside.run(main, *words, "--json", "--out", f"{name}.json").returncode == 0
    by_hand = [
        ("encoder", "unknown", "mine"), ("network", "mine", "mine"), ("network", "misspelt", "resnet-18"),
        ("decoder", "wrong", "llama-3.2-1bb"), ("encoder", "few", "bert-base"), ("decoder", "four", "llama-3.2-1b"),
    ]  # fmt: skip
    for name, other, model in by_hand:
        table = json.loads((folder / f"{name}.json").read_text())
        (folder / f"{other}.json").write_text(json.dumps({**table, "model": {"name": model}}))
    for name, other, key, value in (("encoder", "longer", "context", 100), ("network", "thin", "wire", "int4")):
        table = json.loads((folder / f"{name}.json").read_text())
        (folder / f"{other}.json").write_text(json.dumps({**table, key: value}))
    return folder


@pytest.mark.parametrize("table", ["encoders", "networks", "decoders", "memory"])
def test_bad_input_is_one_line_and_exit_code_2(table, folder):
    before = {*folder.iterdir()}

    refusals.check(TABLES / f"{table}.txt", {"python -m solver": main}, folder)

    assert {*folder.iterdir()} == before
