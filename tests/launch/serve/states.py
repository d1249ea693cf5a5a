"""States of a service as GET /events tells them, with plan tables as the planner writes them."""

from __future__ import annotations

from typing import Any

PIS = ("pi-0", "pi-1", "pi-2", "pi-3")


def in_one(heads: list[int], columns: list[int]) -> list[dict[str, Any]]:
    """Return the stages of a language model that has one, of all devices."""
    blocks = {"attention": {"cut": "heads", "heads": heads}, "mlp": {"cut": "columns", "columns": columns}}
    return [{"runs": [{"layers": [0, 16], **blocks}]}]


DECODER_PLAN: dict[str, Any] = {
    "format": "hepti-plan/2", "system": "hepti",
    "model": {"name": "llama-3.2-1b", "fingerprint": "d3352351dc45"}, "devices": list(PIS), "precision": "int4",
    "cache": "float32", "wire": "float32", "context": 4096, "sequences": 1,
    "stages": in_one([5, 18, 5, 4], [1632, 4128, 1632, 800]),
    "head": {"cut": "words", "words": [26304, 63680, 26272, 12000]},
    "predicted": {"token_s": 0.12476, "first_s": 1.6113, "compute_s": 0.11276, "exchange_s": 0.012,
                  "memory_bytes": [409754368, 854900352, 392936064, 0], "prompt": 64, "behind": 128},
}  # fmt: skip
DECODER_PLAN_WITHOUT_PI_3 = DECODER_PLAN | {
    "devices": list(PIS[:3]),
    "stages": in_one([5, 22, 5], [1632, 4928, 1632]),
    "head": {"cut": "words", "words": [26304, 75680, 26272]},
    "predicted": DECODER_PLAN["predicted"] | {"token_s": 0.140, "memory_bytes": [409754368, 854900352, 392936064]},
}
ON_ONE = DECODER_PLAN | {
    "devices": ["pi-1"], "stages": in_one([32], [8192]), "head": {"cut": "words", "words": [128256]},
    "predicted": DECODER_PLAN["predicted"] | {"memory_bytes": [1657588352]},
}  # fmt: skip
ENCODER_PLAN: dict[str, Any] = {
    "format": "hepti-plan/2", "system": "hepti", "model": {"name": "minilm", "fingerprint": "b8da2014a029"},
    "cluster": {"fingerprint": "16f7af3faf53"}, "rows": 256, "tile_rows": 0, "wire": "float32", "devices": list(PIS),
    "stages": [{"runs": [{
        "layers": [0, 6],
        "attention": {"cut": "rows", "rows": [0.25, 0.5, 0.25, 0.0]},
        "mlp": {"cut": "columns", "columns": [288, 864, 288, 96], "rows": [0.25, 0.5, 0.25, 0.0]},
    }]}],
    "predicted": {"seconds": 0.058, "compute_s": 0.052, "exchange_s": 0.006,
                  "weights_bytes": [15932006, 20327731, 6160896, 1438617], "bytes_on_wire": 9542246},
}  # fmt: skip
CONVNET_PLAN: dict[str, Any] = {
    "format": "hepti-plan/2", "system": "hepti",
    "model": {"name": "resnet50", "fingerprint": "b17da35a601e"}, "cluster": {"fingerprint": ""}, "wire": "float32",
    "devices": list(PIS),
    "stages": [{"runs": [
        {"nodes": [0, 13], "first": "conv1", "cut": "rows", "rows": [12, 31, 10, 3]},
        *({"nodes": [13 + 7 * k, 20 + 7 * k], "first": f"layer{1 + k // 4}/{k % 4}/conv2", "cut": "rows",
           "rows": [5, 16, 5, 2]} for k in range(15)),
        {"nodes": [118, 122], "first": "flatten", "cut": "channels", "channels": [0.2, 0.6, 0.2, 0.0]},
    ]}],
    "predicted": {"seconds": 0.09339, "compute_s": 0.0881, "exchange_s": 0.0053,
                  "weights_bytes": [100085052, 99854124, 101261624, 31816192], "bytes_on_wire": 1902788},
}  # fmt: skip
BEGIN = 1_790_000_000  # when the first event was, unix time


def a_board(name: str, **other: Any) -> dict[str, Any]:
    """Return a board that is well."""
    number = PIS.index(name)
    return {
        "name": name, "alive": True, "seen_s": 0.4, "free_bytes": (3 - number / 2) * 2**30, "total_bytes": 4 * 2**30,
        "temperature_c": 52.0 + 4 * number, "throttled": False, "cpu_percent": 61.0 + number,
        "ranks": [{"pid": 1200 + number, "state": "running"}],
    } | other  # fmt: skip


def a_model(name: str, kind: str, plan: dict[str, Any] | None, **other: Any) -> dict[str, Any]:
    """Return a model that is ready."""
    ranks = [
        {"rank": rank, "device": device, "compute_s": 10.0, "wait_s": 4.0, "sent_bytes": 300 * 2**20}
        for rank, device in enumerate(plan["devices"] if plan else ())
    ]
    return {
        "name": name, "kind": kind, "state": "ready", "reason": None, "plan": plan, "tokens": 4211, "requests": 96,
        "ranks": ranks, "restarts": 0, "reads": "images" if kind == "convnet" else "messages",
    } | other  # fmt: skip


def a_state(*models: dict[str, Any], **other: Any) -> dict[str, Any]:
    """Return a state with four boards, all alive."""
    text = "llama-3.2-1b runs on pi-0, pi-1, pi-2, pi-3"
    return {
        "version": "0.1.0", "models": list(models), "boards": [a_board(name) for name in PIS],
        "events": [{"at": BEGIN, "kind": "planned", "text": text}], "requests": [],
    } | other  # fmt: skip
