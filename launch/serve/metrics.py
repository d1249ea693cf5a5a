"""What Prometheus reads: how requests go, and what every rank and board does. The only address of prometheus-client.

Names are those of vLLM with another prefix, where it has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from launch.serve.journal import Journal

MODEL = ("model_name",)
# Seconds; a prompt of two thousand tokens takes minutes on small boards.
FIRST_TOKEN_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)
BETWEEN_TOKENS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)
WHOLE_S = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
# What is told of a board and of a rank: key of the state, name, and what it is.
OF_BOARD = (
    ("alive", "hepti_board_up", "Whether its heartbeat comes"),
    ("seen_s", "hepti_board_heartbeat_age_seconds", "Since its last heartbeat"),
    ("free_bytes", "hepti_board_memory_free_bytes", "Free memory"),
    ("total_bytes", "hepti_board_memory_bytes", "All memory"),
    ("temperature_c", "hepti_board_temperature_celsius", "Temperature"),
    ("throttled", "hepti_board_throttled", "Whether it runs slower than it could"),
    ("cpu_percent", "hepti_board_cpu_percent", "How busy its cores are"),
)
OF_RANK = (
    ("compute_s", "hepti_rank_compute_seconds", "Time that it computed"),
    ("wait_s", "hepti_rank_wait_seconds", "Time that it waited for others"),
    ("sent_bytes", "hepti_rank_sent_bytes", "What it sent"),
    ("received_bytes", "hepti_rank_received_bytes", "What it received, but for language models"),
)


class Served(Protocol):
    """A model that is served."""

    @property
    def name(self) -> str:
        """As clients call it."""

    @property
    def kind(self) -> str:
        """What it is: "decoder", "encoder" or "convnet"."""

    @property
    def journal(self) -> Journal:
        """Its open requests."""


class Watched(Protocol):
    """Something that serves models and knows how they and their boards are."""

    @property
    def models(self) -> Mapping[str, Served]:
        """By name."""

    def state(self) -> dict[str, Any]:
        """Return what is told of models, boards and events, as JSON."""


class Metrics:
    """Counts requests, and reads the rest when it is asked.

    Parameters
    ----------
    watched
        What is served.
    """

    def __init__(self, watched: Watched) -> None:
        registry = self._registry = CollectorRegistry()
        registry.register(_OfState(watched))
        self._first = Histogram(
            "hepti_time_to_first_token_seconds", "From a request to its first token",
            MODEL, buckets=FIRST_TOKEN_S, registry=registry,
        )  # fmt: skip
        self._between = Histogram(
            "hepti_inter_token_latency_seconds", "From a token to the next",
            MODEL, buckets=BETWEEN_TOKENS_S, registry=registry,
        )  # fmt: skip
        self._whole = Histogram(
            "hepti_e2e_request_latency_seconds", "From a request to the end of its answer",
            MODEL, buckets=WHOLE_S, registry=registry,
        )  # fmt: skip
        self._prompts = Counter("hepti_prompt_tokens", "Tokens of requests", MODEL, registry=registry)
        self._made = Counter("hepti_generation_tokens", "Tokens that were made", MODEL, registry=registry)
        self._requests = Counter(
            "hepti_requests", "Requests that ended", (*MODEL, "finished_reason"), registry=registry
        )

    def asked(self, model: str, tokens: int) -> None:
        """Count a request of so many tokens."""
        self._prompts.labels(model).inc(tokens)

    def first(self, model: str, seconds: float) -> None:
        """Count the first token of an answer."""
        self._first.labels(model).observe(seconds)
        self._made.labels(model).inc()

    def next(self, model: str, seconds: float) -> None:
        """Count another token, so many seconds after the one before."""
        self._between.labels(model).observe(seconds)
        self._made.labels(model).inc()

    def ended(self, model: str, reason: str, seconds: float) -> None:
        """Count a request that is over."""
        self._requests.labels(model, reason).inc()
        self._whole.labels(model).observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _OfState:
    """Reads state and journals whenever Prometheus asks."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def describe(self) -> Iterable[Metric]:
        return ()  # that of which there is none yet

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("hepti_num_requests_running", "Requests that the ranks have", labels=MODEL)
        waiting = GaugeMetricFamily("hepti_num_requests_waiting", "Requests that wait for the ranks", labels=MODEL)
        for name, model in self._watched.models.items():
            running.add_metric((name,), model.journal.running)
            waiting.add_metric((name,), model.journal.waiting)
        yield from (running, waiting)
        state = self._watched.state()
        yield from _of_models(state.get("models", ()))
        for key, name, what in OF_BOARD:
            gauge = GaugeMetricFamily(name, what, labels=("board",))
            for board in state.get("boards", ()):
                _add(gauge, (str(board.get("name")),), board.get(key))
            yield gauge


def _of_models(models: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    models = tuple(models)
    ready = GaugeMetricFamily("hepti_model_ready", "Whether requests are answered now", labels=MODEL)
    again = "How often the ranks were started again, after a loss, a refusal, or with boards that are back"
    restarts = CounterMetricFamily("hepti_restarts", again, labels=MODEL)
    replans = CounterMetricFamily("hepti_replans", "How often the plan changed while ranks ran", labels=MODEL)
    for model in models:
        name = (str(model.get("name")),)
        ready.add_metric(name, model.get("state") == "ready")
        _add(restarts, name, model.get("restarts"))
        _add(replans, name, model.get("replanned"))
    yield from (ready, restarts, replans)
    for key, metric, what in OF_RANK:
        counter = CounterMetricFamily(metric, what, labels=(*MODEL, "rank", "board"))
        for model in models:
            for rank, board in zip(model.get("ranks") or (), model.get("boards") or (), strict=False):
                _add(counter, (str(model.get("name")), str(rank.get("rank")), board), rank.get(key))
        yield counter


def _add(metric: GaugeMetricFamily | CounterMetricFamily, labels: tuple[str, ...], value: Any) -> None:
    """Add a number, if it is known."""
    if isinstance(value, int | float):
        metric.add_metric(labels, float(value))
