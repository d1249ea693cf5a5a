"""Whatever stands in a checkpoint's JSON files, it is converted or refused in one line, and nothing is left behind."""

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.base.errors import HeptiError
from tests.kit.checkpoints import make_checkpoint
from tests.sweeps import count
from weights.convert.convert import convert

FAMILIES = {"bert-classifier": {"shard": "5KB"}, "roberta": {}, "distilbert": {}, "sentence": {"dense": 3}, "vit": {}}
VALUES = (
    st.none() | st.booleans() | st.integers(-2, 50) | st.floats() | st.text(max_size=3)
    | st.sampled_from([10**400, [], {}, [[]], {"a": 1}, "gelu_new", "cls", [4, 4]])
)  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """One small checkpoint a family, with the text of its JSON files."""
    folders = {}
    for family, options in FAMILIES.items():
        folder = tmp_path_factory.mktemp(family)
        make_checkpoint(
            family, folder, layers=1, hidden=4, heads=2, ffn=5, vocab=9, positions=8, image=(4, 4), patch=2, **options
        )
        files = [path for path in folder.rglob("*.json") if path.name != "tokenizer.json"]
        folders[folder] = {path: path.read_text() for path in sorted(files)}
    return folders


def places(node, steps=()):
    """Return the path to every node of the JSON below the root."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, item in items for place in [(*steps, key), *places(item, (*steps, key))]]


@settings(max_examples=count(12, 150))
@given(data=st.data())
def test_damaged_settings_are_converted_or_refused(checkpoints, data):
    folder = data.draw(st.sampled_from(sorted(checkpoints)))
    path, text = data.draw(st.sampled_from(sorted(checkpoints[folder].items())))
    table = json.loads(text)
    *steps, last = data.draw(st.sampled_from(places(table)))
    node = table
    for step in steps:
        node = node[step]
    node[last] = data.draw(VALUES)
    out = folder.parent / f"{folder.name}-out"
    out.mkdir()
    path.write_text(json.dumps(table))
    try:
        convert(folder, out / "model.h5")
        assert [file.name for file in out.iterdir()] == ["model.h5"]
    except HeptiError:
        assert not list(out.iterdir())
    finally:
        path.write_text(text)
        shutil.rmtree(out)


@pytest.mark.parametrize(
    ("family", "file", "key", "value"),
    [
        ("vit", "config.json", "patch_size", 0),
        ("vit", "config.json", "num_channels", None),
        ("vit", "config.json", "num_channels", 3e12),
        ("vit", "preprocessor_config.json", "image_mean", {}),
        ("bert-classifier", "config.json", "hidden_act", "swish"),
        ("bert-classifier", "config.json", "hidden_size", "4"),
        ("bert-classifier", "config.json", "hidden_size", 6),
        ("bert-classifier", "config.json", "position_embedding_type", "relative_key"),
        ("bert-classifier", "config.json", "architectures", ["MPNetModel"]),
        ("sentence", "1_Pooling/config.json", "pooling_mode", "sum"),
        ("sentence", "2_Dense/config.json", "activation_function", "torch.nn.Hardswish"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_computed_are_refused(checkpoints, tmp_path, family, file, key, value, kept):
    (source,) = (folder for folder in checkpoints if folder.name.rstrip("0123456789") == family)
    folder = shutil.copytree(source, tmp_path / "checkpoint")
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    with pytest.raises(HeptiError) as refusal:
        convert(folder, tmp_path / "model.h5")
    kept(refusal.value)
    assert "\n" not in str(refusal.value)
    assert [left.name for left in tmp_path.iterdir()] == ["checkpoint"]
