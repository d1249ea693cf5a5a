"""Models in the formats of others, where a weights file is asked for: converted once, or refused in one line."""

from pathlib import Path

import pytest

from solver.base.errors import HeptiError
from tests.kit import checkpoints
from tests.kit.gguf_files import write_gguf
from weights.decoders.file import DecoderFile
from weights.file.store import ENCODER, LANGUAGE_MODEL, NETWORK, WeightsFile
from weights.formats import checkpoint_folder, model_kind, weights_path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Give an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hepti" / "models"


@pytest.fixture
def encoder(tmp_path):
    """Save the checkpoint of a small encoder."""
    checkpoints.make_checkpoint("sentence", tmp_path / "tiny-bert", positions=64)
    return tmp_path / "tiny-bert"


def test_a_checkpoint_directory_is_converted_once_and_a_line_says_so(encoder, cache):
    said = []

    found = weights_path(encoder, ENCODER, said.append)
    again = weights_path(encoder, ENCODER, said.append)

    assert (found, found.parent) == (again, cache)
    assert f"{encoder} is converted once: {found}" in said[0]
    with WeightsFile(found) as weights:
        assert (weights.spec.name, weights.tokenizer is None) == ("tiny-bert", False)
    assert weights_path(found, ENCODER, said.append) == found
    assert len(said) == 1


def test_the_safetensors_of_a_directory_are_the_directory(encoder):
    assert weights_path(encoder / "model.safetensors") == weights_path(encoder)
    assert model_kind(encoder / "model.safetensors") == ENCODER


def test_a_checkpoint_that_has_changed_takes_the_place_of_what_it_was(encoder, cache):
    first = weights_path(encoder)
    (encoder / "notes.md").write_text("nothing that is read")
    same = weights_path(encoder)
    checkpoints.make_checkpoint("sentence", encoder, positions=64, seed=7)

    second = weights_path(encoder)

    assert first == same != second
    assert list(cache.iterdir()) == [second]


def test_a_damaged_file_in_the_cache_is_made_again(encoder):
    found = weights_path(encoder)
    found.write_bytes(found.read_bytes()[:100])

    assert weights_path(encoder) == found
    WeightsFile(found).close()


def test_a_gguf_file_keeps_its_precision(tmp_path):
    source = tmp_path / "tiny.gguf"
    write_gguf(source, "llama", "Q8_0")

    found = weights_path(source, LANGUAGE_MODEL)

    assert found.name.startswith("tiny-")
    with DecoderFile(found) as weights:
        assert weights.precision == "int8"


def test_what_holds_something_else_is_refused_before_it_is_converted(encoder, tmp_path, cache):
    (tmp_path / "m.gguf").write_text("no matter what")

    for source, wanted, words in (
        (
            tmp_path / "m.gguf",
            ENCODER,
            "m.gguf is a language model, here an encoder is needed: hepti generate takes it",
        ),
        (encoder, LANGUAGE_MODEL, "tiny-bert is an encoder, here a language model is needed"),
        (tmp_path / "net.onnx", LANGUAGE_MODEL, "net.onnx is a convolutional network, here a language model is needed"),
    ):
        with pytest.raises(HeptiError, match=words):
            weights_path(source, wanted)
    assert not cache.exists()


def test_what_cannot_be_converted_is_refused_before_anything_is_said_or_made(encoder, tmp_path, cache):
    (encoder / "model.safetensors").write_bytes(b"cut")
    (tmp_path / "text.onnx").write_text("no network")
    said = []

    with pytest.raises(HeptiError, match=r"cannot read .*model\.safetensors"):
        weights_path(encoder, say=said.append)
    with pytest.raises(HeptiError, match="is no ONNX file"):
        weights_path(tmp_path / "text.onnx", say=said.append)
    for name in ("none.gguf", "none.onnx", "none.safetensors"):
        with pytest.raises(HeptiError, match=f"there is no file .*{name}"):
            weights_path(tmp_path / name, say=said.append)
    assert not cache.exists()
    assert not said


def test_a_safetensors_alone_or_beside_others_is_refused(encoder, tmp_path, kept):
    (tmp_path / "alone.safetensors").write_bytes(b"")
    (encoder / "adapter.safetensors").write_bytes(b"")

    with pytest.raises(HeptiError, match=r"has no config\.json beside it"):
        checkpoint_folder(tmp_path / "alone.safetensors")
    with pytest.raises(HeptiError) as raised:
        checkpoint_folder(encoder / "adapter.safetensors")
    kept(raised.value)


@pytest.mark.parametrize("name", ["meta/Llama-3.2-1B", "BAAI/bge-small-en-v1.5"])
def test_the_name_of_a_hubs_model_is_answered_with_the_command_that_downloads_it(name, tmp_path, monkeypatch, kept):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(HeptiError) as raised:
        weights_path(Path(name))
    kept(raised.value)


@pytest.mark.parametrize("name", ["models/none.h5", "there/none", "a/b/c", "/a/b", "none"])
def test_a_path_that_is_not_there_is_no_hubs_name(name, tmp_path, monkeypatch, kept):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()

    with pytest.raises(HeptiError) as raised:
        weights_path(Path(name))
    kept(raised.value)


@pytest.mark.parametrize("name", ["bert-large", "llama-3.2-1b", "resnet18"])
def test_an_architecture_is_no_weights_file(name, tmp_path, monkeypatch, kept):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(HeptiError) as raised:
        weights_path(Path(name))
    kept(raised.value)


@pytest.mark.parametrize(
    ("there", "mend"),
    [(None, "hf download NAME"), ("m.gguf", "it has m.gguf: name that"), ("notes.md", "hf download NAME")],
)
def test_a_folder_without_a_checkpoint_is_refused_with_what_is_looked_for(there, mend, tmp_path, cache, kept):
    folder, said = tmp_path / "empty", []
    folder.mkdir()
    if there is not None:
        (folder / there).write_bytes(b"")

    with pytest.raises(HeptiError) as raised:
        weights_path(folder, say=said.append)
    kept(raised.value)
    assert not said
    assert not cache.exists()


def test_kinds_are_told_without_converting(encoder, tmp_path, cache):
    assert model_kind(encoder) == ENCODER
    assert model_kind(tmp_path / "none.onnx") == NETWORK
    assert model_kind(tmp_path / "none.gguf") == LANGUAGE_MODEL
    assert model_kind(tmp_path / "none.h5") == ""
    assert not cache.exists()
