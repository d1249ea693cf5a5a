"""Cluster files: written and read back, and every bad value refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB, Cluster, Device, Link, read_cluster, write_cluster
from tests.kit import refused

SHORT = """
format = "hepti-cluster/1"
[[device]]
name = "pi-0"
gflops = 24.6
memory_gib = 3.2
[[device]]
name = "pi-1"
gflops = 10
memory_gib = 1
[[device]]
name = "nuc"
gflops = 70
memory_gib = 7.5
[network]
bandwidth_mbps = 940
latency_us = 200
[[link]]
between = ["pi-0", "nuc"]
bandwidth_mbps = 240
"""

NAMES = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=8)
LINKS = st.builds(Link, st.floats(1e3, 1e12), st.floats(0, 50))


@st.composite
def clusters(draw):
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    pairs = [frozenset((one, other)) for i, one in enumerate(names) for other in names[:i]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    speed, memory, unrest = st.floats(1e7, 1e14), st.integers(2**21, 10**13), st.floats(0, 50)
    return Cluster(
        tuple(Device(name, draw(speed), draw(memory), None, None, draw(unrest), draw(unrest)) for name in names),
        draw(LINKS),
        {pair: draw(LINKS) for pair in chosen},
        draw(st.sampled_from([{}, {"precision": "int8"}])),
    )


def read(text, tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    return read_cluster(path)


@given(cluster=clusters())
def test_a_cluster_survives_its_file(tmp_path_factory, cluster):
    """What is read is what was written, to twelve digits, and a plan made for the one is a plan for the other."""
    path = tmp_path_factory.getbasetemp() / "cluster.toml"
    write_cluster(cluster, path)
    again = read_cluster(path)

    assert again.fingerprint == cluster.fingerprint
    assert again.names == cluster.names
    for one, other in zip(again.devices, cluster.devices, strict=True):
        assert one.memory_bytes == other.memory_bytes
        assert one.compute_flop_per_s == pytest.approx(other.compute_flop_per_s, rel=1e-11)
        assert one.jitter_s == pytest.approx(other.jitter_s, rel=1e-11)
        assert one.rest_s == pytest.approx(other.rest_s, rel=1e-11)
    assert again.links.keys() == cluster.links.keys()
    for pair, link in [(None, cluster.network), *cluster.links.items()]:
        same = again.links[pair] if pair else again.network
        assert same.bandwidth_bytes_per_s == pytest.approx(link.bandwidth_bytes_per_s, rel=1e-11)
        assert same.latency_s == pytest.approx(link.latency_s, rel=1e-11)
    write_cluster(again, path)
    assert read_cluster(path) == again


@given(cluster=clusters(), data=st.data())
def test_the_first_devices_are_a_cluster_of_their_own(tmp_path_factory, cluster, data):
    """It can be written and read, whatever links the devices left out had."""
    ranks = data.draw(st.integers(1, len(cluster.devices)))
    path = tmp_path_factory.getbasetemp() / "first.toml"
    write_cluster(cluster.first(ranks, "a file"), path)

    assert read_cluster(path).names == cluster.names[:ranks]


def test_a_short_file_is_read_in_si_units(tmp_path):
    cluster = read(SHORT, tmp_path)

    assert cluster.names == ("pi-0", "pi-1", "nuc")
    assert cluster.devices[0] == Device("pi-0", 24.6e9, round(3.2 * GIB))
    assert cluster.link(0, 1) == Link(117.5e6, 200e-6)
    # The exception holds in both directions and keeps the network's latency.
    assert cluster.link(0, 2) == cluster.link(2, 0) == Link(30e6, 200e-6)


def test_watts_are_read_and_written(tmp_path):
    cluster = read(SHORT.replace("gflops = 10", "gflops = 10\ncompute_watts = 5.5\ntransmit_watts = 1.2"), tmp_path)
    write_cluster(cluster, tmp_path / "again.toml")

    assert [(d.compute_watts, d.transmit_watts) for d in cluster.devices] == [(0, 0), (5.5, 1.2), (0, 0)]
    assert read_cluster(tmp_path / "again.toml") == cluster


def test_a_latency_left_out_is_that_of_a_home_network(tmp_path):
    assert read(SHORT.replace("latency_us = 200", ""), tmp_path).network.latency_s == 200e-6


def test_fewer_devices_than_ranks_are_refused(tmp_path, kept):
    kept(refused.said(read(SHORT, tmp_path).first, [(4, "pis.toml")]))


def test_fingerprints_tell_clusters_apart(tmp_path):
    texts = [SHORT, SHORT.replace("24.6", "24.7"), SHORT.replace("240", "241"), SHORT.replace('"pi-1"', '"pi-2"')]
    texts.append(SHORT + '[profile]\nprecision = "int8"')

    assert len({read(text, tmp_path).fingerprint for text in texts}) == len(texts)


def test_a_bad_value_is_refused_by_name(kept, tmp_path):
    """Negative, zero, missing, absurd, unknown or misspelt: one line says which, and what is allowed."""
    cases = [
        ("gflops = 24.6", "gflops = -1"),
        ("gflops = 24.6", "gflops = 0"),
        ("gflops = 24.6", "gflops = 24.6e9"),
        ("gflops = 24.6", "gflops = nan"),
        ("gflops = 24.6", "gflops = inf"),
        ("gflops = 24.6", 'gflops = "fast"'),
        ("gflops = 24.6", "gflops = true"),
        ("gflops = 24.6", ""),
        ("gflops = 24.6", "gflop = 24.6\ngflops = 24.6"),
        ("gflops = 24.6", "gflop = 24"),
        ("gflops = 24.6", "gflops = 24.6\nzone = 3"),
        ("memory_gib = 3.2", "memory_gib = 0"),
        ("memory_gib = 3.2", "memory_gib = 4e9"),
        ("memory_gib = 3.2", ""),
        ('name = "pi-0"', ""),
        ('name = "pi-0"', "name = 7"),
        ('name = "pi-0"', 'name = "pi 0"'),
        ('name = "pi-0"', 'name = ""'),
        ('name = "pi-0"', 'name = "pi-1"'),
        ("[network]\nbandwidth_mbps = 940", "[network]"),
        ("bandwidth_mbps = 940", "bandwidth_mbps = 0"),
        ("bandwidth_mbps = 940", "bandwith_mbps = 1\nbandwidth_mbps = 9"),
        ("latency_us = 200", "latency_us = -1"),
        ("[network]", "[[network]]"),
        ("[network]", "[netwrk]"),
        ("bandwidth_mbps = 240", "bandwidth_mbps = -240"),
        ('"pi-0", "nuc"', '"pi-0", "nuk"'),
        ('"pi-0", "nuc"', '"pi-0", [1]'),
        ('"pi-0", "nuc"', '"nuc", "nuc"'),
        ('"pi-0", "nuc"', '"nuc"'),
        ('between = ["pi-0", "nuc"]', "between = 3"),
        ('between = ["pi-0", "nuc"]', ""),
        ("[[link]]", '[[link]]\nbetween = ["nuc", "pi-0"]\n[[link]]'),
        ("[[link]]", "[link]"),
        ("[[link]]", "[[lnk]]"),
        ("hepti-cluster/1", "hepti-cluster/2"),
        ("[[link]]", '[profile]\nprecision = "int4"\n[[link]]'),
        ("[[link]]", '[profile]\nprecision = ["int8"]\n[[link]]'),
        ('format = "hepti-cluster/1"', ""),
    ]

    kept(refused.said(lambda old, new: read(SHORT.replace(old, new, 1), tmp_path), cases))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("24.6", "1" + "0" * 400, "gflops is 10+, must be between"),
        ("[[device]]", "[device", "is not TOML"),
        ("24.6", "9" * 5000, "is not TOML"),
        ("24.6", "[" * 100_000, "is not TOML"),
    ],
    ids=["large", "open", "long", "deep"],
)
def test_what_python_cannot_read_is_refused_in_one_line(tmp_path, old, new, words):
    with pytest.raises(HeptiError, match=f"cluster.toml.*{words}") as refusal:
        read(SHORT.replace(old, new, 1), tmp_path)

    assert "\n" not in str(refusal.value)


def test_no_device_at_all_is_refused(tmp_path, kept):
    kept(refused.said(read, [('format = "hepti-cluster/1"\ndevice = []\n[network]\nbandwidth_mbps = 1', tmp_path)]))


def test_files_that_cannot_be_read_or_written_are_refused(tmp_path, kept):
    cluster = read(SHORT, tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'format = "\xe9"')

    kept(refused.said(read_cluster, [tmp_path / "nowhere.toml", tmp_path / "latin.toml"]))
    kept(refused.said(write_cluster, [(cluster, tmp_path / "missing" / "out.toml")]))
