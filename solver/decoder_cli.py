"""What `python -m solver` does where the model is a language model: plan, price, compare and show shares."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from solver.base.command import check_path, write_whole
from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean, ms
from solver.base.progress import progress
from solver.base.tables import new_console
from solver.cluster.cluster import Cluster
from solver.cluster.named import asked_cluster
from solver.model.decoder import Decoder
from solver.model.named_decoders import NAMED_DECODERS, named_decoder
from solver.models import decoder_of, kind_of
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.file import plan_to_price, planned_model, read_any_plan, read_plan
from solver.plan.plan import WIRES, Wire
from solver.plan.writing import plan_table, plan_to_json
from solver.schedule.decoders.asked import PROMPT, TOKENS, TokenRequest, token_request
from solver.schedule.decoders.cost import answer_seconds, setting_of
from solver.show.advice import Upgrade, upgrades, usual_changes
from solver.show.decoder_facts import (
    ComparedDecoder,
    PricedDecoder,
    answer_bound,
    compare_decoders,
    decoder_systems,
    explained_decoder,
    priced_decoder,
    proved_decoder,
)
from solver.show.decoder_tables import (
    decoder_title,
    decoder_to_json,
    decoders_to_json,
    print_beside,
    print_decoder,
    print_decoders,
    print_shares_map,
)
from solver.show.explanation import decoder_explanation_to_json, print_decoder_explanation
from solver.show.pictures import (
    check_map,
    check_picture,
    draw_winners,
    draws_map,
    pass_drawn,
    plot_timeline,
)
from solver.show.plan_tables import print_estimated, print_upgrades
from solver.show.schedule_table import print_schedule, schedule_rows, schedule_to_json
from solver.show.titles import links, place, say_drawn
from solver.systems import DEFAULT
from solver.systems.decoders import SYSTEMS, plan_decoder

# Options that are about other models, with what they are about.
REFUSED = {
    "rows": "the length of a text that is encoded",
    "deadline_ms": "images",
}
# Options that only a language model has.
OWN = ("precision", "prompt", "tokens", "context", "sequences", "cache")


def is_about_decoder(options: argparse.Namespace) -> bool:
    """Return whether the model, or where none is named the plan to be priced, is a language model's."""
    model = options.model
    if model is None:
        return options.price is not None and isinstance(read_any_plan(options.price), DecoderPlan)
    return kind_of(model) == "decoder"


def refuse_decoder_options(options: argparse.Namespace) -> None:
    """Refuse what is for language models, where the model is none.

    Raises
    ------
    HeptiError
        Naming the option.
    """
    for name in OWN:
        if getattr(options, name) is not None:
            raise HeptiError(f"--{name} is for language models: leave it out")


def run_decoder(options: argparse.Namespace) -> None:
    """Do what the options say.

    Raises
    ------
    HeptiError
        If they do not fit a language model or each other, or there is no plan.
    """
    _check(options)
    cluster = asked_cluster(options)
    if options.price:
        _price(options, cluster)
        return
    model, precision = decoder_of(options.model, options.layers)
    wishes = {name: getattr(options, name) for name in ("prompt", "tokens", "context", "sequences", "cache")}
    asked = token_request(model, precision, options.precision, Wire(options.wire), **wishes)
    asked.check(model)
    if options.compare:
        _compare(options, model, cluster, asked)
        return
    if draws_map(options):
        of = " of all sequences" * (options.objective == "throughput")
        title = f"{decoder_title(model, asked)}, {place(options)}: who wins by tokens a second{of}"
        draw_winners(
            options.map, title, cluster, [*SYSTEMS],
            lambda other, advance: _compared(options, model, other, asked, SYSTEMS, advance), options.objective,
        )  # fmt: skip
        say_drawn(options, options.map)
        return
    if options.prove is None:
        plan = plan_decoder(options.system or DEFAULT, model, cluster, asked, any_sequences=_any_sequences(options))
    else:
        plan, words = proved_decoder(model, cluster, asked, options.prove)
        print(words, file=sys.stderr)
    if options.out:
        write_whole(options.out, plan_to_json(plan, model))
    show = _explain if options.explain else _show
    asked = replace(asked, sequences=plan.sequences)
    show(options, priced_decoder(model, cluster, plan, asked), asked)


def _any_sequences(options: argparse.Namespace) -> bool:
    """Return whether a plan is for as many sequences as make most tokens a second."""
    return options.objective == "throughput" and options.sequences is None


def _compared(
    options: argparse.Namespace, model: Decoder, cluster: Cluster, asked: TokenRequest, systems: Iterable[str],
    advance: Callable[[int], None],
) -> list[ComparedDecoder]:  # fmt: skip
    return compare_decoders(model, cluster, asked, systems, advance, any_sequences=_any_sequences(options))


def _check(options: argparse.Namespace) -> None:
    """Refuse what is for other models, cannot be written, or says nothing beside other options."""
    for name, about in REFUSED.items():
        if getattr(options, name) not in (None, False):
            raise HeptiError(f"--{name.replace('_', '-')} is about {about}: for a language model leave it out")
    for name in ("price", "explain"):
        if options.objective != "latency" and getattr(options, name):
            raise HeptiError(f"--{name} is not about --objective {options.objective}: leave one of the two out")
    if options.wire not in (None, *WIRES):
        raise HeptiError(f"--wire {options.wire} is for an encoder's stages, a language model sends {', '.join(WIRES)}")
    if draws_map(options):
        check_map(options)
    other = "--compare" if options.compare else "--price" if options.price else ""
    own = ("precision", "context", "sequences", "cache") if options.price else ("schedule", "map", "price", "plot")
    for name in ("system", "out", *own):
        if other and getattr(options, name) is not None:
            raise HeptiError(f"--{name} is for a plan that is made, {other} makes none: leave one of the two out")
    printed = [name for name in ("json", "schedule", "map") if getattr(options, name) not in (None, False)]
    if "map" in printed and len(printed) > 1:
        raise HeptiError(f"--map prints who has what, and no more: leave out --{printed[0]}")
    for name in ("schedule", "map", "price", "compare", "plot"):
        if options.explain and getattr(options, name) not in (None, False):
            raise HeptiError(f"--explain prints how the plan was found, and no more: leave out --{name}")
    if options.explain and options.system not in (None, DEFAULT):
        raise HeptiError(f"--explain is about --system {DEFAULT}, not about {options.system}: leave it out")
    if options.plot is not None:
        check_picture(options.plot)
    if options.out is not None:
        check_path(options.out, (".json",))


def _plot(options: argparse.Namespace, found: PricedDecoder, title: str) -> None:
    """Draw the timeline of a token in the middle of the answer."""
    by = f" by {found.plan.system}" * bool(found.plan.system)
    title = f"{title}\na token, predicted{by}: {ms(found.token.seconds)} ms"
    steps = pass_drawn(found.token, len(found.cluster.devices))
    plot_timeline(found.cluster, steps, found.token.seconds, options.plot, title)
    say_drawn(options, options.plot)


def _explain(options: argparse.Namespace, found: PricedDecoder, asked: TokenRequest) -> None:
    """Say how a plan was found."""
    explained = explained_decoder(found.model, found.cluster, found.plan, asked)
    if options.json:
        table = plan_table(found.plan, found.model) | {"explanation": decoder_explanation_to_json(found, explained)}
        print(json.dumps(table, indent=1))
        return
    console = new_console(highlight=False)
    console.print(_title(options, found.model, found.cluster, asked), markup=False)
    print_decoder_explanation(console, found, explained)


def _show(options: argparse.Namespace, found: PricedDecoder, asked: TokenRequest) -> None:
    title, console = _title(options, found.model, found.cluster, asked), new_console(highlight=False)
    if options.plot:
        _plot(options, found, title)
    if options.schedule is not None:
        rows = schedule_rows(found.cluster, found.token, options.schedule)
        if options.json:
            print(schedule_to_json(rows), end="")
        else:
            print_schedule(console, rows, options.schedule)
        return
    if options.map:
        console.print(title, markup=False)
        print_shares_map(console, found)
        return
    others, bound, better = [], None, list[Upgrade]()
    if not options.price:
        bound = answer_bound(found, asked)
        systems = [name for name in decoder_systems(found.cluster) if name not in (DEFAULT, found.plan.system)]
        with progress("comparing", len(systems), unit="systems") as advance:
            others = _compared(options, found.model, found.cluster, asked, systems, advance)
        if found.plan.system == DEFAULT:
            better = _upgrades(found, asked, bound.answer_s, others)
    if options.json:
        print(decoder_to_json(found, others, bound, better), end="")
        return
    console.print(title, markup=False)
    print_decoder(console, found)
    if bound is not None:
        print_beside(console, found, others, bound, options.objective)
        of = " of the answer" if asked.sequences == 1 else f" of all {asked.sequences} answers"
        print_upgrades(console, bound.answer_s, better, of)
        assert found.plan.predicted is not None
        token_s = found.plan.predicted.token_s
        print_estimated(console, found.cluster, lambda device: device.decoder is not None, token_s, others)


def _upgrades(
    found: PricedDecoder, asked: TokenRequest, answer_s: float, others: Sequence[ComparedDecoder]
) -> list[Upgrade]:
    """Return what other clusters save of the answer."""

    def again_s(other: Cluster) -> float:
        plan = plan_decoder(DEFAULT, found.model, other, asked)
        return answer_seconds(setting_of(found.model, other, plan), plan, asked)

    return upgrades(answer_s, again_s, usual_changes(found.cluster, others))


def _price(options: argparse.Namespace, cluster: Cluster) -> None:
    """Show what a plan file would take; of the model that it names, where no other is given."""
    if options.model is None:
        name, fingerprint = planned_model(options.price)
        if name not in NAMED_DECODERS:
            raise HeptiError(
                f"{options.price}: {name} is no language model known by name{did_you_mean(name, NAMED_DECODERS)}; or "
                f"say --model MODEL.h5"
            )
        # What was made for some layers has a fingerprint.
        made = read_plan(options.price, DecoderPlan).stages[-1].layers.stop if fingerprint else None
        model = named_decoder(name, options.layers or made)
    else:
        model, _ = decoder_of(options.model, options.layers)
    plan = read_plan(options.price, DecoderPlan, model)
    plan = plan_to_price(options.price, plan, model, cluster.names, options.wire)
    options.wire = plan.wire
    room = plan.context - 1
    prompt = min(PROMPT, room) if options.prompt is None else options.prompt
    asked = TokenRequest(
        prompt=prompt,
        tokens=min(TOKENS, plan.context - prompt) if options.tokens is None else options.tokens,
        context=plan.context,
        sequences=plan.sequences,
        precision=plan.precision,
        cache=plan.cache,
        wire=plan.wire,
    )
    asked.check(model)
    found = priced_decoder(model, cluster, plan, asked)
    if found.lacks:
        print(f"note: {options.price} {found.lacks}", file=sys.stderr)
    _show(options, found, asked)


def _compare(options: argparse.Namespace, model: Decoder, cluster: Cluster, asked: TokenRequest) -> None:
    systems = decoder_systems(cluster)
    with progress("comparing", len(systems), unit="systems") as advance:
        entries = _compared(options, model, cluster, asked, systems, advance)
    if options.json:
        print(decoders_to_json(model, cluster, entries, asked, options.objective), end="")
    else:
        title = _title(options, model, cluster, asked)
        print_decoders(new_console(highlight=False), entries, title, options.objective)


def _title(options: argparse.Namespace, model: Decoder, cluster: Cluster, asked: TokenRequest) -> str:
    return f"{decoder_title(model, asked)}, {place(options)}{links(cluster)}"
