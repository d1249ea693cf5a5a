"""What a person wants to know of a language model's plan: a token's price by device, memory, and what else there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.programs.decoders.shares import CrewTried, crews_tried, least_shares, parted_around
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.bound import answer_bound_s
from solver.schedule.decoders.cost import answer_seconds, predicted, price_token, setting_of, tokens_per_s
from solver.schedule.decoders.memory import RankMemory, decoder_lacks, rank_memory
from solver.schedule.price import Price
from solver.show.advice import Limit, limits_of, proved
from solver.show.comparison import ComparedSystem, beside_devices, side_by_side
from solver.systems.decoders import SYSTEMS, plan_decoder
from solver.systems.decoders.hepti import all_shared, plan_hepti


@dataclass(frozen=True, slots=True, eq=False)
class PricedDecoder:
    """A language model's plan with what it takes.

    Parameters
    ----------
    plan
        With what is predicted.
    token
        A token in the middle of the answer.
    memory
        Of every device.
    tokens_per_s
        Of all sequences together, of the time that their prompts take, too.
    """

    model: Decoder
    cluster: Cluster
    plan: DecoderPlan
    token: Price
    memory: tuple[RankMemory, ...]
    tokens_per_s: float

    @property
    def lacks(self) -> str:
        """What memory the plan lacks, in words, and where; "" where it fits."""
        return decoder_lacks(self.cluster, self.memory)


@dataclass(frozen=True, slots=True)
class ComparedDecoder(ComparedSystem):
    """A system's plan of a language model: its seconds and bytes are a token's, its requests tokens of all sequences.

    Parameters
    ----------
    first_s
        From a prompt to the first token.
    sequences
        How many sequences have room.
    """

    first_s: float = np.inf
    sequences: int = 1


def priced_decoder(model: Decoder, cluster: Cluster, plan: DecoderPlan, asked: TokenRequest) -> PricedDecoder:
    """Price a plan, whether or not memory suffices."""
    s = setting_of(model, cluster, plan)
    memory = rank_memory(model, plan)
    plan = predicted(s, plan, memory, asked.prompt, asked.behind)
    speed = tokens_per_s(s, plan, asked)
    return PricedDecoder(model, cluster, plan, price_token(s, plan, asked.behind), memory, speed)


@dataclass(frozen=True, slots=True)
class AnswerBound:
    """The seconds of an answer by a plan, and those below which no plan is."""

    answer_s: float
    bound_s: float


def answer_bound(found: PricedDecoder, asked: TokenRequest) -> AnswerBound:
    """Return what a plan's answer takes beside what no plan beats."""
    s = setting_of(found.model, found.cluster, found.plan)
    return AnswerBound(answer_seconds(s, found.plan, asked), answer_bound_s(s, asked))


def proved_decoder(model: Decoder, cluster: Cluster, asked: TokenRequest, percent: float) -> tuple[DecoderPlan, str]:
    """Look for a language model's plan as `proved` does; the seconds are an answer's."""
    s = setting_of(model, cluster, asked)
    least_s = answer_bound_s(s, asked)
    return proved(
        lambda thorough: plan_hepti(model, cluster, asked, thorough=thorough),
        lambda plan: 1 - least_s / answer_seconds(s, plan, asked),
        percent,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedDecoder:
    """How shares of a language model were found; seconds are of an answer.

    Parameters
    ----------
    crews
        That were tried, the soonest first.
    answer_s, parted_s
        By the plan; and could units be parted.
    limits
        What devices' speeds and links bind, and what the next MiB of memory would save.
    idle
        How much longer it takes with the best of the least shares for those who have none, by name.
    """

    crews: tuple[CrewTried, ...]
    answer_s: float
    parted_s: float
    limits: tuple[Limit, ...]
    idle: dict[str, float]


def explained_decoder(model: Decoder, cluster: Cluster, plan: DecoderPlan, asked: TokenRequest) -> ExplainedDecoder:
    """Seek shares once more, and say how they were found.

    Raises
    ------
    HeptiError
        If the plan has several stages, which are found otherwise.
    """
    if len(plan.stages) > 1:
        raise HeptiError(
            f"--explain is about shares among devices: this plan has {len(plan.stages)} stages, which are faster here"
        )
    task, _ = all_shared(model, cluster, asked)
    answer_s, found = answer_seconds(task.s, plan, asked), parted_around(task, plan)
    assert found is not None, "the plan itself fulfils it"
    idle = {cluster.names[rank]: added_s for rank, added_s in least_shares(task, plan).items()}
    limits = limits_of(cluster.names, found, found.per_byte)
    return ExplainedDecoder(tuple(crews_tried(task)), answer_s, min(found.seconds, answer_s), tuple(limits), idle)


def decoder_systems(cluster: Cluster) -> tuple[str, ...]:
    """Return what stands side by side: all systems, and single devices."""
    return beside_devices(SYSTEMS, cluster)


def compare_decoders(
    model: Decoder,
    cluster: Cluster,
    asked: TokenRequest,
    systems: Iterable[str],
    advance: Callable[[int], None] = lambda _: None,
    *,
    any_sequences: bool = False,
) -> list[ComparedDecoder]:
    """Plan by each of the systems, and predict what comes of it; `advance` is called with 1 after each.

    `any_sequences` is as of `plan_decoder`: then each is for a number of its own.
    """
    return side_by_side(systems, lambda system: _entry(system, model, cluster, asked, any_sequences), advance)


def _entry(system: str, model: Decoder, cluster: Cluster, asked: TokenRequest, any_sequences: bool) -> ComparedDecoder:
    try:
        plan = plan_decoder(system, model, cluster, asked, any_sequences=any_sequences)
    except HeptiError as error:
        why = str(error).removeprefix(model.name).removeprefix(f" by {system.partition(':')[0]}").lstrip(" ,:")
        return ComparedDecoder(system, np.inf, 0.0, 0, (), why)
    found = priced_decoder(model, cluster, plan, replace(asked, sequences=plan.sequences))
    facts = found.plan.predicted
    assert facts is not None
    sent = found.token.prediction.bytes_on_wire
    held = tuple(needs.weights for needs in found.memory)
    return ComparedDecoder(
        system, facts.token_s, found.tokens_per_s, sent, held, taking=len(plan.active), first_s=facts.first_s,
        sequences=plan.sequences,
    )  # fmt: skip
