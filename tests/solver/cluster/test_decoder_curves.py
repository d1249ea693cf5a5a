"""What language models take on a device: measured, derived, and in the cluster file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tomli_w

from solver.cluster.cluster import Cluster, Device, Link, read_cluster, write_cluster
from solver.cluster.decoder_curves import (
    CachedCurve,
    DecoderPart,
    decoder_from_table,
    decoder_to_table,
    derived_decoder_speeds,
)
from tests.kit import refused
from tests.kit.answers import speeds

MEASURED = speeds(2e9, call_s=5e-5)


def test_seconds_lie_between_the_points_and_on_along_the_last():
    found = MEASURED.seconds(DecoderPart.MLP, 1, [0, 1e6, 2e9])
    three = MEASURED.seconds(DecoderPart.MLP, 3, 1e6)

    assert found == pytest.approx([0, 5e-5 + 5e-4, 5e-5 + 1.0])
    assert three == pytest.approx(5e-5 + 1.25 * 5e-4)
    assert MEASURED.seconds(DecoderPart.MLP, 512, 1e6) == pytest.approx(5e-5 + 136 * 5e-4, rel=0.02)


def test_a_pi_4_reads_3_7_gigabytes_of_int4_a_second():
    derived = derived_decoder_speeds(24.6e9, "int4")
    one, two, many = (float(derived.seconds(DecoderPart.MLP, rows, 3.69e9)) for rows in (1, 2, 64))

    assert one == pytest.approx(1.0, rel=0.01)
    assert two == pytest.approx(one, rel=0.02)
    assert many == pytest.approx(17 * one, rel=0.01)


def test_int8_and_int4_are_read_at_the_same_speed():
    by_precision = {name: derived_decoder_speeds(1e10, name) for name in ("int4", "int8", "float32")}
    once = [float(own.seconds(DecoderPart.HEAD, 1, 1e8)) for own in by_precision.values()]

    assert once == pytest.approx([once[0]] * 3)
    assert by_precision["int8"].seconds(DecoderPart.HEAD, 64, 1e8) < by_precision["int4"].seconds(
        DecoderPart.HEAD, 64, 1e8
    )


def test_what_was_measured_in_another_precision_does_not_count():
    device = Device("pi", 1e10, 2**30, decoder=MEASURED)

    assert device.decoder_speeds("int4") is MEASURED
    assert device.decoder_speeds("int8") == derived_decoder_speeds(1e10, "int8")


def test_a_cluster_file_keeps_what_was_measured(tmp_path):
    cluster = Cluster((Device("pi", 1e10, 2**30, decoder=MEASURED), Device("pi-too", 1e10, 2**30)), Link(1e8, 1e-4))
    write_cluster(cluster, tmp_path / "c.toml")

    assert read_cluster(tmp_path / "c.toml") == cluster
    derived = replace(cluster, devices=(replace(cluster.devices[0], decoder=None), cluster.devices[1]))
    assert cluster.fingerprint != derived.fingerprint


def test_many_rows_see_cached_tokens_at_their_own_price():
    curve = CachedCurve((1.0, 3.0), (4e-9, 2e-9))

    assert [curve.at(rows) for rows in (1, 2, 3, 99)] == pytest.approx([4e-9, 3e-9, 2e-9, 2e-9])


def test_what_no_device_takes_is_refused(kept):
    cases = [
        {"precision": "int3"},
        {"pass_us": -1},
        {"message_us": float("nan")},
        {"message_us": 1e9},
        {"gelu": 1},
        {"mlp": None},
        {"mlp": {"rows": [1, 2], "weights": [1, 2], "seconds": [[1, 1], [1, 0]]}},
        {"head": {"rows": [2, 1], "weights": [1, 2], "seconds": [[1, 1], [1, 1]]}},
        {"head": {"rows": [1, 2], "weights": [1, 2], "seconds": [[1, 1]]}},
        {"cached": {"int8": {"rows": [1], "ns": [1]}}},
        {"cached": {"int8": {"rows": [1], "ns": [1, 2]}}},
        {"cached": {"int8": {"rows": [0], "ns": [1]}}},
        {"cached": {"int8": {"rows": [1], "ns": [1e9]}}},
    ]

    kept(
        refused.said(
            lambda change: decoder_from_table(refused.without_none({**decoder_to_table(MEASURED), **change})), cases
        )
    )


def test_the_file_and_the_device_are_named(tmp_path, kept):
    table = {
        "format": "hepti-cluster/1",
        "network": {"bandwidth_mbps": 100},
        "device": [{"name": "pi", "gflops": 1, "memory_gib": 1, "decoder": {"precision": "int4"}}],
    }
    path = tmp_path / "c.toml"
    path.write_text(tomli_w.dumps(table))

    kept(refused.said(read_cluster, [path]))
