"""What a model computes to NaN or infinite numbers is an error of that request in every output, and never code 0."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from hepti_mpi.__main__ import main
from solver.model.decoder import decoder_tensors
from solver.model.named_decoders import named_decoder
from tests.kit import inside
from tests.kit.checkpoints import make_checkpoint
from tests.kit.networks import classifier
from weights.convert.convert import convert
from weights.decoders.file import DecoderWriter
from weights.file.networks import write_network

QUICK = ("--backend", "numpy", "--cluster", "pi4")  # nothing is measured
LARGE = np.float32(3e38)  # times two it is no float32


@pytest.fixture
def encoder(tmp_path):
    """Make an encoder whose word 7 ends in infinite numbers, and other words do not."""
    make_checkpoint("bert", tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / "model.safetensors"
    tensors = load_file(path)
    tensors["embeddings.word_embeddings.weight"][7] = float(LARGE)
    save_file(tensors, path, {"format": "pt"})
    convert(tmp_path / "checkpoint", tmp_path / "model.h5")
    return tmp_path / "model.h5"


def lines(path, *rows):
    path.write_text("".join(json.dumps({"id": n, "tokens": row}) + "\n" for n, row in enumerate(rows, start=1)))
    return path


@pytest.mark.parametrize("ending", ["jsonl", "npz"])
def test_of_an_encoder_the_others_are_answered(encoder, tmp_path, ending):
    output = tmp_path / f"answers.{ending}"
    asked = lines(tmp_path / "asked.jsonl", [2, 8, 3], [2, 7, 3], [2, 9, 3])

    done = inside.run(main, "--model", encoder, "--input", asked, "--output", output, *QUICK)

    assert done.returncode == 2
    assert done.stderr.count("request 2: the model made NaN") == 1
    found = list(np.load(output)) if ending == "npz" else [json.loads(line)["id"] for line in output.open()]
    assert [int(name) for name in found] == [1, 3]


def test_of_an_encoder_alone_nothing_is_answered(encoder, tmp_path):
    asked = lines(tmp_path / "asked.jsonl", [2, 7, 3])

    done = inside.run(main, "--model", encoder, "--input", asked, "--repeat", "3", *QUICK)

    assert (done.returncode, done.stderr.count("request 1: the model made NaN")) == (2, 1)


@pytest.mark.parametrize("ending", ["jsonl", "npz"])
def test_of_a_network_no_scores_are_said(tmp_path, ending):
    net, tensors = classifier()
    write_network(tmp_path / "net.h5", net, {name: np.full_like(of, LARGE) for name, of in tensors.items()}, "test")
    output = tmp_path / f"answers.{ending}"

    done = inside.run(main, "--model", tmp_path / "net.h5", "--cluster", "pi4", "--random", "0", "--output", output)

    assert done.returncode == 2
    assert "the model made NaN" in done.stderr


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("backend", ["onnxruntime", "numpy"])
def test_of_a_language_model_no_token_is_said(backend, tmp_path):
    """And numpy does not warn of it."""
    model = named_decoder("smollm2-135m", 1)
    with DecoderWriter(tmp_path / "model.h5", model, "test") as weights:
        for name, tensor in decoder_tensors(model).items():
            shape = tensor.shape
            weights.write(name, 0, np.full(shape, LARGE if name == "final_norm/weight" else 0.01, np.float32))
    asked = lines(tmp_path / "asked.jsonl", [1, 5])

    words = ("--model", tmp_path / "model.h5", "--input", asked, "--tokens", "3", "--backend", backend, *QUICK[2:])
    done = inside.run(main, "generate", *words)

    assert done.returncode == 2
    assert "request 1: the model made NaN" in done.stderr
    assert "new_tokens" not in done.stdout


def test_what_a_model_has_no_row_or_position_for_is_refused(tmp_path):
    """RoBERTa counts positions by what is not padding; and a tokenizer may have tokens that the model has not."""
    make_checkpoint("sentence-roberta", tmp_path / "checkpoint")
    words = len(json.loads((tmp_path / "checkpoint" / "tokenizer.json").read_text())["model"]["vocab"])
    make_checkpoint("sentence-roberta", tmp_path / "checkpoint", vocab=words)
    path = tmp_path / "checkpoint" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "additional_special_tokens": ["<new>"]}))
    convert(tmp_path / "checkpoint", tmp_path / "model.h5")
    asked, output = tmp_path / "asked.txt", tmp_path / "answers.jsonl"
    asked.write_text("a <pad> board\na <new> board\na small board\n")

    done = inside.run(main, "--model", tmp_path / "model.h5", "--input", asked, "--output", output, *QUICK)

    assert done.returncode == 2
    assert "line 1: token 1 is padding" in done.stderr
    assert f"line 2: token {words} is out of range" in done.stderr
    assert [json.loads(line)["tokens"] > 3 for line in output.open()] == [True]
