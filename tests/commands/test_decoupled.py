"""A BERT with decoupled layers, trained a little with torch: from its checkpoint directory to the same answers."""

import json
from functools import partial

import numpy as np
import pytest
import torch
import transformers as hf
from transformers.models.bert.modeling_bert import BertLayer

from solver import cli as solver_command
from solver.cluster.cluster import write_cluster
from solver.model.named import named_model
from tests.kit import inside
from tests.kit.asked import check_answers, check_hidden, to_lines
from tests.kit.checkpoints import LABELS, write_tokenizer
from tests.kit.clusters import pis
from tests.kit.commands import complaints, succeeded
from tests.kit.shared_ranks import jobs
from weights import cli

weights, solver = partial(inside.run, cli.main), partial(inside.run, solver_command.main)
GROUPS, SUB_BLOCKS, LAYERS = 2, 4, 6
VOCAB, POSITIONS, STEPS = 97, 64, 40


def decoupled_bert():
    """Return a classifier of two groups, each of two layers of four sub-blocks and an original one."""
    config = hf.BertConfig(
        vocab_size=VOCAB, max_position_embeddings=POSITIONS, hidden_size=48, intermediate_size=72,
        num_attention_heads=8, num_hidden_layers=LAYERS, id2label=dict(enumerate(LABELS[:3])),
        attn_implementation="eager", num_decoupled_groups=GROUPS, num_sub_blocks=SUB_BLOCKS,
    )  # fmt: skip
    # A quarter of the width and of the heads, and 4 H² + 2 H F parameters in the four together.
    part = hf.BertConfig(
        hidden_size=12, intermediate_size=72 + 2 * 48 * 3 // 4, num_attention_heads=2, attn_implementation="eager"
    )
    model = hf.BertForSequenceClassification(config)
    for number in (0, 1, 3, 4):
        model.bert.encoder.layer[number] = torch.nn.ModuleList([BertLayer(part) for _ in range(SUB_BLOCKS)])
    return model


def forward(model, ids):
    """Return the last hidden state [batch, S, H] and the logits; sub-block j sees its quarter of the columns only."""
    x = model.bert.embeddings(ids)
    for layer in model.bert.encoder.layer:
        if isinstance(layer, torch.nn.ModuleList):
            x = torch.cat([first(part(chunk)) for part, chunk in zip(layer, x.chunk(SUB_BLOCKS, -1), strict=True)], -1)
        else:
            x = first(layer(x))
    return x, model.classifier(model.bert.pooler(x))


def first(result):
    return result[0] if isinstance(result, tuple) else result


def train(model):
    """Learn which third of the vocabulary a text is from; return the loss of every step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        labels = torch.randint(0, 3, (32,))
        ids = 5 + 30 * labels[:, None] + torch.randint(0, 30, (32, 12))
        loss = torch.nn.functional.cross_entropy(forward(model, ids)[1], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return the trained model and its directory."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("checkpoint") / "debert"
    model = decoupled_bert()
    losses = train(model)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2
    model.eval().save_pretrained(folder)
    write_tokenizer("bert", folder, POSITIONS)
    return model, folder


@pytest.fixture(scope="module")
def converted(checkpoint):
    model, folder = checkpoint
    path = folder / "debert.h5"
    done = succeeded(weights("convert", folder, path))
    return model, path, done.stdout


def ask(model):
    """Return requests as JSON lines, and what torch answers to each."""
    rng, lines, expected = np.random.default_rng(0), [], {}
    for rows in (1, 2, 64, 37):
        tokens = rng.integers(5, VOCAB, rows)
        with torch.no_grad():
            hidden, logits = forward(model, torch.as_tensor(tokens)[None])
        scores = logits[0].softmax(-1).numpy()
        lines.append({"id": f"{rows} rows", "tokens": tokens.tolist()})
        expected[f"{rows} rows"] = {"hidden": hidden[0].numpy(), "logits": logits[0].numpy(), "scores": scores}
    return to_lines(lines), expected


@pytest.mark.parametrize(
    ("system", "ranks"),
    [
        ("detransformer", 3),
        *(
            pytest.param(system, ranks, marks=pytest.mark.thorough("as three of DeTransformer"))
            for system, ranks in (("detransformer", 1), ("detransformer", 5), ("single", 2))
        ),
    ],
)
def test_a_trained_model_gives_what_torch_gives(system, ranks, converted, tmp_path):
    model, path, _ = converted
    lines, expected = ask(model)
    (tmp_path / "requests.jsonl").write_text(lines)
    write_cluster(pis(*[5, 20, 10, 2, 5][:ranks], mbps=500), tmp_path / "boards.toml")
    job = ("--model", path, "--cluster", tmp_path / "boards.toml", "--system", system)

    done = jobs(ranks, *job, "--input", "-", "--output", tmp_path / "hidden.npz", stdin=lines)
    succeeded(jobs(ranks, *job, "--input", tmp_path / "requests.jsonl", "--output", tmp_path / "answers.jsonl"))

    check_answers(succeeded(done).stdout, expected)
    check_hidden(tmp_path / "hidden.npz", expected)
    check_answers((tmp_path / "answers.jsonl").read_text(), expected)


def test_a_file_with_decoupled_layers_is_inspected_and_verified(converted, kept):
    model, path, made = converted

    kept(made)
    shown = succeeded(weights("inspect", path)).stdout
    facts = json.loads(succeeded(weights("inspect", path, "--json")).stdout)

    assert "layers/decoupled/0-3/attention/query/weight" in shown
    assert "layers/original/attention/query/weight" in shown
    assert (facts["model"]["groups"], facts["model"]["sub_blocks"]) == (GROUPS, SUB_BLOCKS)
    assert facts["parameters"] == sum(value.numel() for value in model.parameters())
    assert facts["tensors"]["layers/4/3/mlp/up/weight"]["shape"] == [144, 12]
    assert "are whole" in succeeded(weights("verify", path)).stdout


def test_what_is_synthesized_is_planned_and_run(tmp_path):
    path, plan, report = tmp_path / "model.h5", tmp_path / "plan.json", tmp_path / "report.json"
    (tmp_path / "cluster.toml").write_text(
        'format = "hepti-cluster/1"\n'
        + "".join(f'[[device]]\nname = "pi-{n}"\ngflops = {20 + n}\nmemory_gib = 4\n' for n in range(3))
        + "[network]\nbandwidth_mbps = 940\nlatency_us = 200\n"
    )

    succeeded(weights("synthesize", "minilm-l6-decoupled", path, "--layers", "3"))
    job = ("--model", path, "--cluster", tmp_path / "cluster.toml")
    succeeded(solver(*job, "--system", "detransformer", "--out", plan))
    succeeded(jobs(3, *job, "--plan", plan, "--random", "40", "--report", report))

    found = json.loads(report.read_text())
    assert found["plan"]["system"] == "detransformer"
    assert sum(rank["sent_bytes"] for rank in found["per_rank"]) > 0


def refuses(done, kept):
    """Check that a command refuses in one line, as it is kept."""
    assert done.returncode == 2
    (line,) = complaints(done)
    kept(line)


def test_what_does_not_divide_is_refused_with_the_numbers(tmp_path, kept):
    for name in ("bert-base-decoupled-5x4", "bert-base-decoupled-4x8", "bert-base-decoupled-4x7", "bert-bas-decoupled"):
        refuses(weights("synthesize", name, tmp_path / "model.h5"), kept)


def test_a_checkpoint_that_is_not_as_its_settings_say_is_refused(checkpoint, tmp_path, kept):
    _, folder = checkpoint
    for file in ("model.safetensors", "tokenizer.json"):
        (tmp_path / file).symlink_to(folder / file)
    config = json.loads((folder / "config.json").read_text())
    for changes in (
        {"num_decoupled_groups": 4}, {"num_sub_blocks": 3}, {"num_sub_blocks": 2}, {"num_decoupled_groups": 3},
        {"num_sub_blocks": "four"},
    ):  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        refuses(weights("convert", tmp_path, tmp_path / "model.h5"), kept)


def test_other_systems_refuse_a_decoupled_model_in_one_line(converted, kept):
    refuses(jobs(2, "--model", converted[1], "--random", "8"), kept)
    for system in ("megatron", "hepti-throughput"):
        refuses(solver("--model", converted[1], "--cluster", "paper2", "--system", system), kept)


def test_detransformer_refuses_a_model_without_decoupled_layers_in_one_line(kept):
    assert not named_model("bert-base").groups
    refuses(solver("--model", "bert-base", "--cluster", "mixed4", "--system", "detransformer"), kept)
