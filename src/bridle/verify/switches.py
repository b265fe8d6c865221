"""The template's switches: are those it reads known, and does a change on the way keep what is held?"""

from __future__ import annotations

from itertools import product

from bridle.errors import BridleError, TemplateError
from bridle.gateway.prompt import prepare
from bridle.messages import ModelRequest, Switches
from bridle.rendering.base import Renderer, Switch
from bridle.verify.conversations import TOOLS, spelled, switched, system, user
from bridle.verify.histories import check_prefix, check_splice, tell_broken
from bridle.verify.player import CONTEXT, REFUSALS, Player, open_session
from bridle.verify.report import Finding, Ledger, broken
from bridle.verify.stock import Stock

EFFORTS = ("", "low", "medium", "high")


def check_switches(renderer: Renderer, stock: Stock, ledger: Ledger, seed: int) -> None:
    settings = taken_settings(renderer)
    _check_reads(renderer, stock, ledger)
    _check_root(renderer, settings, ledger)
    if len(settings) > 1:
        player = Player(renderer, seed, dropout=0.0)
        for play in switched(seed, settings):
            played = player.play(play)
            if played.refused:
                ledger.differs("switches", Finding(play.name, -1, "refused", played.refused, declared=True))
            tell_broken(played, ledger, "switches")
            check_prefix(renderer, played, ledger, "switches")
            check_splice(renderer, stock, played, ledger, "switches")


def taken_settings(renderer: Renderer) -> tuple[Switches, ...]:
    """Every setting that the template takes."""
    asked = [Switches(thinking, effort) for thinking, effort in product((None, True, False), EFFORTS)]
    return tuple(dict.fromkeys(renderer.taken(setting) for setting in asked))


def _check_reads(renderer: Renderer, stock: Stock, ledger: Ledger) -> None:
    """Each switch that changes the stock text is among the facts."""
    settings: dict[Switch, tuple[Switches, ...]] = {
        "thinking": (Switches(True), Switches(False)),
        "effort": tuple(Switches(effort=effort) for effort in EFFORTS),
    }
    for name, tried in settings.items():
        texts = set()
        for setting in tried:
            try:
                texts.add(stock.text([user("one")], (), setting, True))
            except TemplateError:
                continue
        if len(texts) > 1 and name not in renderer.facts.switches:
            what = f"the template reads {name} and the facts do not say so"
            ledger.fails("switches", Finding("settings", -1, "unknown", what))
        else:
            ledger.passed("switches")


def _check_root(renderer: Renderer, settings: tuple[Switches, ...], ledger: Ledger) -> None:
    """Two settings give the same beginning unless a switch of the root tells them apart."""
    roots: dict[tuple[object, ...], tuple[Switches, bytes]] = {}
    for setting in settings:
        key = tuple(str(getattr(setting, name)) for name in renderer.facts.root_switches)
        request = ModelRequest("openai_chat", "m", (system("Be brief."), user("one")), TOOLS, switches=setting)
        try:
            prompt = prepare(renderer, open_session(renderer, "root"), request, CONTEXT)
        except REFUSALS as error:
            ledger.differs("switches", Finding(spelled(setting), -1, "refused", error.message, declared=True))
            continue
        except BridleError as error:
            ledger.fails("switches", broken(spelled(setting), -1, error))
            continue
        first, root = roots.setdefault(key, (setting, prompt.rendered[0].tobytes()))
        if root != prompt.rendered[0].tobytes() and renderer.facts.extendable:
            what = f"the beginning of a conversation depends on a switch that the facts do not name: {spelled(first)}"
            ledger.fails("switches", Finding(spelled(setting), -1, "root", what))
        else:
            ledger.passed("switches")
