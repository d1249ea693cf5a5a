"""`from launch import Cluster`: a model on ranks of this machine, from a program; answers are those of transformers."""

import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from transformers import AutoImageProcessor

import launch
from launch import Cluster
from solver import make_plan
from solver.base.errors import HeptiError
from tests.kit import checkpoints
from tests.kit.commands import start
from tests.kit.networks import LABELS, write_classifier
from tests.kit.planned import write_mixed_plan

TEXTS = ["the small board at home", "it is warm tonight", "a model over its slow network"]
NEW = 12
TALK = [{"role": "user", "content": "why is the cat blue?"}]
# A program that is interrupted as soon as it has said so, in the midst of a long answer.
INTERRUPTED = """
import sys
from launch import Cluster
with Cluster(ranks=2).start(sys.argv[1], cluster="paper2") as model:
    for piece in model.generate("the cat", stream=True, max_tokens=200):
        print("said", flush=True)
        sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def sentence(converted):
    return converted("sentence")


@pytest.fixture(scope="module")
def embedding(sentence):
    """Give a sentence encoder on two ranks."""
    with Cluster(ranks=2).start(sentence.path, cluster="paper2") as model:
        yield model


@pytest.fixture(scope="module")
def speaking(tiny, uneven):
    """Give a language model on three ranks."""
    with Cluster(ranks=3).start(tiny.path, plan=uneven, context=256) as model:
        yield model


def ids(checkpoint, text):
    return checkpoints.token_ids(checkpoint.folder, text, checkpoint.model.config.max_position_embeddings)


def job_of(process):
    """Return what a process has started, mpirun and ranks."""
    return set(psutil.Process(process).children(recursive=True))


def lives(process):
    """Return whether a process runs; one that has ended may wait for this machine's first process to notice."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_texts_become_the_embeddings_of_transformers(embedding, sentence):
    found = embedding.embed(TEXTS)

    wanted = np.array([sentence.expected(ids(sentence, text))["embedding"] for text in TEXTS])
    assert (found.dtype, found.shape) == (np.float32, wanted.shape)
    assert np.abs(found - wanted).max() < 1e-4
    assert embedding.embed([]).shape == (0, wanted.shape[1])


def test_many_texts_of_many_threads_are_answered_in_order(embedding):
    numbered = [f"{'home ' * (number % 7)} {TEXTS[number % 3]}" for number in range(200)]
    whole = embedding.embed(numbered)

    with ThreadPoolExecutor(4) as threads:
        parts = threads.map(embedding.embed, [numbered[start : start + 50] for start in range(0, 200, 50)])

    assert np.abs(np.concatenate(list(parts)) - whole).max() < 1e-4


def test_what_cannot_be_answered_is_one_line_and_ends_nothing(embedding, sentence):
    for ask, words in (
        (lambda: embedding.embed([TEXTS[0], " "]), "request 2: the text is empty"),
        (lambda: embedding.embed(TEXTS[0]), "texts is one text: give a list"),
        (lambda: embedding.embed([TEXTS[0], "home " * 999]), "text 1 is longer than"),
        (lambda: embedding.generate("x"), f"{sentence.path.name} is an encoder, generate needs a language model"),
        (lambda: embedding.classify("x"), "is no classifier"),
    ):
        with pytest.raises(HeptiError, match=words):
            ask()

    assert embedding.embed(TEXTS).shape[0] == len(TEXTS)


def test_the_status_says_who_computes_what(embedding, sentence):
    status = embedding.status()

    assert status["model"] == sentence.path.stem
    assert [rank["rank"] for rank in status["ranks"]] == [0, 1]


def test_a_text_is_classified_by_name(converted):
    checkpoint = converted("bert-classifier")

    with Cluster(ranks=2).start(checkpoint.path, cluster="paper2") as model:
        found = model.classify(TEXTS[0])
        with pytest.raises(HeptiError, match="is a classifier: classify answers"):
            model.embed(TEXTS)

    scores = checkpoint.expected(ids(checkpoint, TEXTS[0]))["scores"]
    wanted = dict(zip(checkpoints.LABELS[: len(scores)], scores, strict=True))
    assert {one.label: pytest.approx(one.score, abs=1e-4) for one in found} == wanted
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_an_image_is_classified_by_path_and_by_content(converted, tmp_path):
    checkpoint, path = converted("vit-classifier"), tmp_path / "a.png"
    noise = np.random.default_rng(0).integers(0, 256, (45, 61, 3), np.uint8)
    Image.fromarray(noise).save(path)
    processor = AutoImageProcessor.from_pretrained(checkpoint.folder, backend="pil")
    wanted = checkpoint.expected(processor(Image.open(path), return_tensors="np")["pixel_values"][0])["scores"]

    with Cluster().start(checkpoint.path, plan=write_mixed_plan(tmp_path / "plan.json", checkpoint, 1, 0)) as model:
        found = [model.classify(asked) for asked in (path, str(path), path.read_bytes())]
        with pytest.raises(HeptiError, match="cannot read the image"):
            model.classify(tmp_path / "none.png")

    assert found[0] == found[1] == found[2]
    assert found[0][0].score == pytest.approx(float(wanted.max()), abs=1e-4)


def test_a_convolutional_network_says_its_five_likeliest_classes(tmp_path):
    path, image = tmp_path / "net.h5", tmp_path / "a.png"
    write_classifier(path)
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(image)

    with Cluster(ranks=2).start(path, cluster="paper2") as model:
        found = model.classify(image)

    assert len(found) == 5
    assert {one.label for one in found} <= set(LABELS)


def test_a_prompt_and_a_conversation_are_answered_as_transformers_does(speaking, tiny):
    for asked in ("the cat sleeps", TALK):
        assert speaking.generate(asked, max_tokens=NEW) == tiny.text(tiny.says(asked, NEW))


def test_a_stream_is_the_same_text_in_pieces(speaking, tiny):
    pieces = list(speaking.generate("the cat sleeps", stream=True, max_tokens=NEW))

    assert len(pieces) > 1
    assert "".join(pieces) == tiny.text(tiny.says("the cat sleeps", NEW))


def test_a_stream_that_is_left_ends_its_answer(speaking):
    before = speaking.status()["tokens"]
    pieces = speaking.generate("the cat", stream=True, max_tokens=200)
    next(pieces)
    pieces.close()

    speaking.generate("the cat", max_tokens=1)  # after it

    assert speaking.status()["tokens"] - before < 150


def test_wishes_of_an_answer_are_heard(speaking, tiny):
    said = tiny.text(tiny.says("the cat sleeps", NEW))

    assert speaking.generate("the cat sleeps", max_tokens=NEW, stop=[said[3:6]]) == said[:3]
    drawn = {speaking.generate("the cat", max_tokens=NEW, temperature=2.0, top_p=0.9, seed=seed) for seed in (1, 1, 2)}
    assert len(drawn) == 2
    assert speaking.generate("the cat", schema={"enum": [12, 405]}) in ("12", "405")
    with pytest.raises(HeptiError, match="temperature"):
        speaking.generate("the cat", temperature=-1.0)


def test_a_plan_of_make_plan_is_run(sentence):
    found = make_plan(sentence.path, "paper2", system="voltage")

    with Cluster(ranks=2).start(sentence.path, plan=found) as model:
        assert model.status()["plan"]["system"] == "voltage"


def test_an_exception_ends_all_ranks(sentence):
    before = job_of(None)
    model = Cluster(ranks=2).start(sentence.path, cluster="paper2")
    job = job_of(None) - before

    with pytest.raises(ZeroDivisionError), model:
        1 / 0  # noqa: B018

    assert len(job) >= 3
    assert not any(map(lives, job))
    with pytest.raises(HeptiError, match="runs no more"):
        model.embed(TEXTS)
    model.close()


def test_ctrl_c_in_the_midst_of_an_answer_ends_all_ranks(tiny):
    with start(sys.executable, "-c", INTERRUPTED, tiny.path) as process:
        assert process.stdout.readline() == "said\n"
        job = job_of(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate()

    assert process.returncode in (-signal.SIGINT, 130)
    assert len(job) >= 3
    assert not any(map(lives, job))


def test_a_rank_that_is_killed_fails_what_is_asked_in_one_line(sentence):
    before = job_of(None)
    with Cluster(ranks=2).start(sentence.path, cluster="paper2") as model:
        ranks = [one for one in job_of(None) - before if "mpirun" not in one.name()]
        next(one for one in ranks if one.environ().get("OMPI_COMM_WORLD_RANK") == "1").kill()
        with pytest.raises(HeptiError) as raised:
            embed_for_ever(model)

    assert "\n" not in str(raised.value)
    assert re.search(r"(rank 1 .*|a rank) was ended by signal 9", str(raised.value))


def embed_for_ever(model):
    while True:
        model.embed(TEXTS)


def test_what_cannot_start_says_so_in_one_line(sentence, tiny, tmp_path):
    (tmp_path / "cut.h5").write_bytes(sentence.path.read_bytes()[:999])
    for begin, words in (
        (lambda: Cluster("pi-0,pi-1"), "give a list of names, or the Path of a hostfile"),
        (lambda: Cluster(["-x"]), "would be an option of ssh"),
        (lambda: Cluster(tmp_path / "none"), "there is no hostfile"),
        (lambda: Cluster(ranks=0), "ranks is 0, must be at least 1"),
        (lambda: Cluster().start(tmp_path / "none.h5"), "no weights file"),
        (lambda: Cluster().start(tmp_path / "cut.h5"), "cut short or damaged"),
        (lambda: Cluster().start("nobody/has-this"), "hf download nobody/has-this"),
        (lambda: Cluster().start(sentence.path, context=9), "context and sequences are about language models"),
        (lambda: Cluster().start(sentence.path, plan=make_plan(sentence.path, "paper2")), "2 devices"),
        (lambda: Cluster().start(tiny.path, context=9999), "--context is 9999"),
        (lambda: Cluster(["no-such-host.invalid"]).start(sentence.path), "no-such-host"),
    ):
        with pytest.raises(HeptiError, match=words) as raised:
            begin()
        assert "\n" not in str(raised.value)
        assert "Traceback" not in str(raised.value)


def test_the_package_has_these_names_alone():
    assert launch.Cluster is Cluster
    with pytest.raises(AttributeError, match="has no attribute 'Klaster'"):
        _ = launch.Klaster
    assert Path(launch.StartedModel.__module__.replace(".", "/")).name == "program"
