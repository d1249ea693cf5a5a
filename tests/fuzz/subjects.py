"""What strangers give us: of every kind a good one, and how it is read as a command reads it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.inputs import Reader
from hepti_mpi.requests.pictures import PictureReader
from hepti_mpi.requests.prompts import PromptReader, Wishes
from hepti_mpi.requests.sampling import Sampling
from hepti_mpi.requests.service_lines import ServiceLines
from solver.base.spans import Span
from solver.cluster.cluster import read_cluster, write_cluster
from solver.cluster.named import find_cluster
from solver.model.decoder import decoder_tensors
from solver.model.spec import TextInput, encoder, tensor_shapes
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.file import read_plan
from solver.plan.holdings import TensorSlice
from solver.plan.plan import Plan
from solver.plan.segments import SegmentPlan
from solver.plan.writing import plan_to_json
from solver.schedule.decoders.asked import TokenRequest
from solver.systems.decoders import plan_decoder
from tests.fuzz.damage import damaged_bytes, damaged_json
from tests.kit.chat_templates import CHATML, SPECIAL
from tests.kit.convnets import plan_of
from tests.kit.decoders import MODELS, Weights
from tests.kit.gguf_files import write_gguf
from tests.kit.networks import classifier, write_classifier
from tests.kit.onnx_files import onnx_file
from tests.kit.planned import PLAN
from tests.kit.texts import TOKENIZERS
from weights.decoders.file import DecoderFile, DecoderWriter
from weights.decoders.gguf import open_gguf
from weights.file.networks import NetworkFile
from weights.file.store import WeightsFile, WeightsWriter
from weights.inputs.templates import ChatTemplate
from weights.inputs.tokenize import PromptTokenizer, Tokenizer
from weights.networks.onnx_graph import read_onnx

DECODER = MODELS["llama"]
OLD_PLAN = Path(__file__).parents[1] / "data" / "plans" / "mixture.json"  # of the first version
ENCODER = encoder("odd", 12, 10, 3, 2, input=TextInput(vocab=90, positions=40, max_rows=32), labels=("no", "måske"))


@dataclass(frozen=True)
class Subject:
    """Makes a good one in a folder, as bytes; damages it; and reads a damaged one, in a folder."""

    good: Callable[[Path], bytes]
    damage: Callable[[bytes, np.random.Generator], bytes]
    read: Callable[[bytes, Path], object]


def of_file(write, read, suffix, damage=damaged_bytes):
    """Return a file's: `write` and `read` take its path."""

    def good(folder):
        path = folder / f"good{suffix}"
        write(path)
        return path.read_bytes()

    def read_bytes(data, folder):
        path = folder / f"damaged{suffix}"
        path.write_bytes(data)
        read(path)

    return Subject(good, damage, read_bytes)


def of_plan(write, kind, model=None):
    """Return a plan file's."""
    return of_file(write, lambda path: read_plan(path, kind, model), ".json", damaged_json)


def of_line(entries, read):
    """Return a JSON line's, one of several entries by turns; `read` takes its bytes."""
    lines = json.dumps(entries).encode()

    def damage(good, rng):
        entry = json.loads(good)[rng.integers(0, len(entries))]
        return damaged_json(json.dumps(entry), rng).replace(b"\n", b" ")

    def read_line(line, folder):
        for entry in json.loads(line) if line == lines else [line]:
            read(entry if isinstance(entry, bytes) else json.dumps(entry).encode(), folder)

    return Subject(lambda folder: lines, damage, read_line)


def write_encoder(path):
    rng = np.random.default_rng(1)
    with WeightsWriter(path, ENCODER, "made for a test", tokenizer=TOKENIZERS["pieces"]().to_str()) as weights:
        for name, shape in tensor_shapes(ENCODER).items():
            weights.write(name, 0, rng.standard_normal(shape, np.float32))


def read_encoder(path):
    with WeightsFile(path) as weights:
        if weights.tokenizer is not None and isinstance(weights.spec.input, TextInput):
            Tokenizer(weights.tokenizer, weights.spec.input.max_rows)("the end")
        for name, shape in tensor_shapes(weights.spec).items():
            weights.read(TensorSlice(name, Span(0, shape[0]), shape))


def write_decoder(path):
    texts = {"tokenizer": TOKENIZERS["pieces"]().to_str(), "chat_template": CHATML, "special": SPECIAL}
    tensors = Weights(DECODER)
    with DecoderWriter(path, DECODER, "made", precision="int4", generation={"temperature": 0.5}, **texts) as weights:
        for name, values in tensors.arrays.items():
            weights.write(name, 0, values)


def read_decoder(path):
    with DecoderFile(path) as weights:
        if weights.tokenizer is not None:
            PromptTokenizer(weights.tokenizer).encode("the end")
        if weights.chat_template is not None:
            ChatTemplate(weights.chat_template, weights.special).render([{"role": "user", "content": "hi"}])
        for name in decoder_tensors(weights.model):
            weights.read(name)


def read_gguf(path):
    with open_gguf(path):
        pass


def write_segments(path):
    net, _ = classifier()
    path.write_text(plan_to_json(plan_of(net, [(len(net.nodes), "rows", [0.5, 0.5])], 2), net))


def write_tokens_plan(path):
    plan = plan_decoder("hepti", DECODER, find_cluster("mixed4"), TokenRequest(prompt=4, tokens=4, context=64))
    path.write_text(plan_to_json(plan, DECODER))


def read_network(path):
    with NetworkFile(path) as weights:
        for name in weights.net.tensors:
            weights.read(name)


def a_line(make_reader):
    """Return what reads one line as standard input does; what is wrong with it is one line."""

    def read(line, folder):
        complaints = []
        reader = make_reader(complaints.append, folder)
        list(reader._reader.of(ServiceLines().of([line]), "standard input", reader._json))
        assert all("\n" not in str(complaint) for complaint in complaints)

    return read


def prompts(complain, folder):
    made = TOKENIZERS["pieces"]()
    usual = Wishes(Ending(9, eos=(1,)), Sampling())
    template = ChatTemplate(CHATML, SPECIAL)
    return PromptReader(DECODER, 40, PromptTokenizer(made.to_str()), template, complain, usual, by_id=False)


def texts(complain, folder):
    return Reader(ENCODER, TOKENIZERS["pieces"]().to_str(), complain, by_id=False, images=folder)


def pictures(complain, folder):
    return PictureReader(classifier()[0], complain, by_id=False, images=folder)


SUBJECTS = {
    "encoder": of_file(write_encoder, read_encoder, ".h5"),
    "decoder": of_file(write_decoder, read_decoder, ".h5"),
    "network": of_file(write_classifier, read_network, ".h5"),
    "onnx": of_file(onnx_file, read_onnx, ".onnx"),
    "gguf": of_file(lambda path: write_gguf(path, "llama", "Q8_0"), read_gguf, ".gguf"),
    "cluster": of_file(lambda path: write_cluster(find_cluster("mixed4"), path), read_cluster, ".toml"),
    "plan": of_plan(lambda path: path.write_text(json.dumps(PLAN)), Plan),
    "segments": of_plan(write_segments, SegmentPlan, classifier()[0]),
    "tokens": of_plan(write_tokens_plan, DecoderPlan, DECODER),
    "old plan": of_plan(lambda path: path.write_text(OLD_PLAN.read_text()), Plan),
    "prompts": of_line(
        [
            {"id": "a", "prompt": "the end", "max_tokens": 3, "temperature": 0.5, "stop": ["x"], "said": [1, 2]},
            {
                "id": 1,
                "tokens": [3, 4],
                "seed": 1,
                "top_p": 0.5,
                "top_k": 4,
                "logprobs": 2,
                "stream": True,
                "schema": {"type": "object", "properties": {"a": {"enum": [1, "b"]}}},
            },
            {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": False},
            {"cancel": "a"},
            {"status": 1},
        ],
        a_line(prompts),
    ),
    "texts": of_line([{"id": 1, "text": "the end"}, {"id": "b", "tokens": [1, 2]}, {"cancel": 1}], a_line(texts)),
    "pictures": of_line([{"id": 1, "image": "deep/a.png"}, {"image": "../b.png"}], a_line(pictures)),
}
