"""What lies in examples/ does what it says, with small models."""

import json
import sys

import numpy as np
import pytest

from launch.serve.journal import Journal
from launch.serve.texts import read_texts
from tests.kit.checkpoints import make_checkpoint
from tests.kit.commands import ROOT, run, succeeded
from tests.kit.fake_service import WORDS, FakeModel, running
from tests.kit.languages import make_tiny
from tests.kit.networks import LABELS, expected, write_classifier, write_photos
from weights import cli as weights


def example(name, *words, **options):
    return run(sys.executable, ROOT / "examples" / name, *words, PYTHONPATH=str(ROOT), **options)


def test_a_text_that_is_the_question_is_nearest_to_it(tmp_path):
    make_checkpoint("sentence", tmp_path / "mini", layers=1)
    assert weights.main(["convert", str(tmp_path / "mini"), str(tmp_path / "mini.h5")]) == 0
    texts = {"tyre.txt": "the network is slow", "deep/cat.txt": "a warm home", "board.txt": "the small board splits"}
    for name, text in texts.items():
        path = tmp_path / "notes" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    options = ("--model", tmp_path / "mini.h5", "--np", 2)

    done = example("search_folder.py", tmp_path / "notes", "a warm home", "--best", 2, *options)

    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "1.000  deep/cat.txt: a warm home"
    assert -1 <= float(second.split()[0]) < 1


def test_what_hepti_refuses_ends_an_example_with_its_line(tmp_path):
    (tmp_path / "a.txt").write_text("a warm home")

    done = example("search_folder.py", tmp_path, "a question", "--model", tmp_path / "none.h5")

    assert done.returncode == 2
    assert done.stderr.startswith(f"search_folder.py: no weights file {tmp_path}/none.h5: ")
    assert len(done.stderr.splitlines()) == 1


def test_pictures_stand_below_the_class_that_the_network_sees_and_a_bad_one_is_named(tmp_path):
    write_classifier(tmp_path / "sees.h5")
    write_photos(tmp_path / "photos")
    bad = tmp_path / "photos" / "bad.png"
    options = ("--model", tmp_path / "sees.h5", "--np", 2)

    done = example("classify_pictures.py", tmp_path / "photos", *options)

    # Beside it may stand how steady this machine was while it was measured.
    complaints = [line for line in done.stderr.splitlines() if "hosts were busy" not in line]
    assert len(complaints) == 1, done.stderr
    complaint = complaints[0]
    assert done.returncode == 2
    assert complaint.startswith(f"classify_pictures.py: {bad}: ")
    found, label = {}, None
    for line in done.stdout.splitlines():
        if line.startswith("  "):
            found[line.split()[1]] = label
        else:
            label = line
    assert found == {
        name: LABELS[np.argmax(expected(tmp_path / "photos" / name))] for name in ("a.png", "b.jpg", "deep/c.png")
    }


def test_a_chat_prints_every_answer(tmp_path):
    tiny = make_tiny(tmp_path / "tiny")

    def models():
        return [FakeModel("tiny", "decoder", Journal(8, 8))]

    said = "why is the sky blue?\nthe cat\n\nnot asked\n"
    with running(models, {"tiny": read_texts(tiny.path, 256)}) as service:
        done = example("chat.py", "--url", f"{service.url}/v1", "--tokens", 4, stdin=said)
        lines = service.service.models["tiny"].lines

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == 2 * ["".join(WORDS[:4])]
    assert len(lines) == 2
    assert len(lines[1]["tokens"]) > len(lines[0]["tokens"])  # what was said before is in it


def test_a_chat_without_a_service_ends_in_one_line(kept):
    done = example("chat.py", "--url", "http://127.0.0.1:1/v1")

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    kept(line)


def test_a_faster_board_saves_more():
    done = succeeded(example("buy_next.py", "bert-large", "mixed4"))

    title, *boards = done.stdout.splitlines()
    assert title.startswith("bert-large on mixed4: ")
    now = float(title.split()[-2])
    milliseconds = {words[2]: float(words[6]) for words in map(str.split, boards)}
    assert milliseconds["minipc"] < milliseconds["pi5"] < milliseconds["pi4"] <= milliseconds["pi3"] <= now


@pytest.mark.slow("plans for every board that could be bought, twice")
def test_a_board_that_costs_half_saves_twice_as_much_per_euro():
    dear, cheap = (
        succeeded(example("buy_next.py", "bert-large", "mixed4", "--price", f"pi5={euros}")) for euros in (200, 100)
    )

    (first,), (second,) = (
        [line.split() for line in done.stdout.splitlines() if " pi5 " in line] for done in (dear, cheap)
    )
    assert (first[4], second[4]) == ("200", "100")
    assert float(second[8]) == pytest.approx(2 * float(first[8]), abs=0.011)


OTHERS = pytest.mark.thorough("refused by the same line")


@pytest.mark.parametrize(
    "price", ["pi6=3", *(pytest.param(price, marks=OTHERS) for price in ("pi5", "pi5=-1", "pi5=cheap", "pi5=nan"))]
)
def test_a_price_that_is_none_is_refused(price, kept):
    done = example("buy_next.py", "bert-large", "mixed4", "--price", price)

    assert done.returncode == 2
    kept(done.stderr)


def test_a_system_of_ones_own_is_priced_and_runs(tmp_path):
    plan = tmp_path / "plan.json"

    done = succeeded(example("own_system.py", "minilm-l6", "mixed4", "--out", plan))

    own, ours = (float(line.split()[1]) for line in done.stdout.splitlines())
    assert own >= ours
    (stage,) = json.loads(plan.read_text())["stages"]
    shares = stage["runs"][0]["attention"]["heads"]
    assert [share > 0 for share in shares].count(True) == 2
    assert weights.main(["synthesize", "minilm-l6", str(tmp_path / "model.h5")]) == 0
    front = (sys.executable, "-m", "launch.front")
    job = ("--np", 4, "--model", tmp_path / "model.h5", "--plan", plan, "--random", 16)
    assert run(*front, "run", *job).returncode == 0


@pytest.mark.parametrize("model", ["bert-huge", pytest.param("llama-9-9b", marks=OTHERS)])
def test_what_the_planner_refuses_is_one_line(model):
    done = example("buy_next.py", model, "mixed4")

    assert done.returncode == 2
    assert done.stderr.startswith(f"buy_next.py: unknown model {model}")
    assert len(done.stderr.splitlines()) == 1


def test_a_text_that_is_none_is_named_and_the_others_are_searched(tmp_path):
    make_checkpoint("sentence", tmp_path / "mini", layers=1)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "good.txt").write_text("a warm home")
    (tmp_path / "notes" / "bad.txt").write_bytes(b"\xff\xfe\x00")

    done = example("search_folder.py", tmp_path / "notes", "a warm home", "--model", tmp_path / "mini")

    assert done.returncode == 2
    assert done.stdout == "1.000  good.txt: a warm home\n"
    assert "notes/bad.txt" in done.stderr.splitlines()[-1]
