"""Make ``prompts.jsonl`` and ``heldout.jsonl`` from ``catalogue.yaml`` and ``phrases.yaml``.

    python examples/customer-service/make_data.py [--out FOLDER]

The same inputs and ``SEED`` give the same bytes. A row is a prompt (a system line; the facts on a
product and a customer's question) and a reference answer that uses no fact which the prompt does
not show. No pair of product and intent stands on both sides of the split, and ten products are
never seen in training at all.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
SEED = 20
UNSEEN = frozenset(
    [
        "rill-bottle",
        "rill-flask",
        "alder-chef",
        "alder-bread",
        "wren-chair",
        "wren-stool",
        "beacon-bank",
        "juniper-probe",
        "bracken-gaiters",
        "willow-apron",
    ]
)
FACTS = {
    "price": "cost{s} {price}",
    "weight": "weigh{s} {weight}",
    "material": "{is} made of {material}",
    "size": "{size}",
    "warranty": "come{s} with a {warranty} warranty",
    "returns": "may be returned within {returns}",
    "delivery": "{is} delivered in {delivery}",
    "stock": "{is} in stock ({stock} left)",
    "restock": "{is} sold out for {restock}",
    "colours": "come{s} in {colours}",
    "battery": "{has} a battery for {battery}",
    "features": "{has} {features}",
    "use": "{is} made for {use}",
    "avoid": "{is} not made for {avoid}",
    "care": "need{s} this care: {care}",
}
FILLERS = ("price", "weight", "material", "warranty", "colours", "returns")
LONG = frozenset({"features", "care", "use", "avoid"})

Product = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What a customer may ask about: a product, an intent, for a comparison also its pair."""

    product: Product
    intent: str
    other: Product | None = None

    @property
    def key(self) -> tuple[str, frozenset[str]]:
        """What must not stand on both sides of the split: the intent and its products."""
        return self.intent, frozenset(p["id"] for p in (self.product, self.other) if p)

    @property
    def unseen(self) -> bool:
        """Is one of its products kept out of training?"""
        return bool(self.key[1] & UNSEEN)


class Deck:
    """Deals from a shuffled deck, shuffled anew when it is used up: evenly, yet in no order."""

    def __init__(self, cards: Sequence[str], rng: random.Random) -> None:
        self.cards, self.rng = tuple(cards), rng
        self.left: list[str] = []

    def deal(self, allowed: Sequence[str] | None = None) -> str:
        """The next card that is `allowed` (all, if None).

        Raises:
            ValueError: no card is.
        """
        for _ in range(2):
            for card in self.left:
                if allowed is None or card in allowed:
                    self.left.remove(card)
                    return card
            fresh = list(self.cards)
            self.rng.shuffle(fresh)
            self.left += fresh
        raise ValueError(f"none of {self.cards} is allowed here")


def fields(text: str) -> list[str]:
    """The names in braces, in order."""
    return [name for _, name, _, _ in Formatter().parse(text) if name]


def listed(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def words(product: Product) -> dict[str, str]:
    """All that a phrase may name about one product, ready to stand in a sentence."""
    many = bool(product.get("plural"))
    days = "{} to {} days".format(*product["delivery"])
    noun = product["name"].split()
    for part in product["short"].split():
        if noun[0] == part:
            noun.pop(0)
    facts = {key: str(value) for key, value in product.items()}
    return facts | {
        "the": f"the {product['name']}",
        "The": f"The {product['name']}",
        "noun": " ".join(noun),
        "it": "they" if many else "it",
        "It": "They" if many else "It",
        "acc": "them" if many else "it",
        "one": "a pair" if many else "one",
        "is": "are" if many else "is",
        "Is": "Are" if many else "Is",
        "has": "have" if many else "has",
        "does": "do" if many else "does",
        "Does": "Do" if many else "Does",
        "s": "" if many else "s",
        "this": "these" if many else "this one",
        "Its": "Their" if many else "Its",
        "price": f"{product['price']} euros",
        "warranty": f"{product['warranty']}-year",
        "returns": f"{product['returns']} days",
        "delivery": days,
        "restock": f"{product.get('restock')} days",
    }


def cases(products: Sequence[Product], intents: Sequence[str]) -> Iterator[Case]:
    """All that can be asked: no battery without one, no delivery of what is sold out."""
    by_id = {p["id"]: p for p in products}
    for product in products:
        for intent in intents:
            if intent == "comparison":
                other = by_id.get(product.get("pair"))
                if other and product["stock"] and other["stock"]:
                    yield Case(product, intent, other)
            elif intent == "battery" and "battery" not in product:
                continue
            elif intent != "delivery" or product["stock"]:
                yield Case(product, intent)


def split(
    pool: Sequence[Case], train: int, heldout: int, rng: random.Random
) -> tuple[list[Case], list[Case]]:
    """Cases of one intent for both files; held out are unseen products first, up to about half."""
    unseen = [c for c in pool if c.unseen]
    seen = [c for c in pool if not c.unseen]
    rng.shuffle(unseen)
    rng.shuffle(seen)
    held = unseen[: min(len(unseen), (heldout + 1) // 2)]
    for case in seen:
        if len(held) >= heldout:
            break
        held += [c for c in seen if c.key == case.key and c not in held]
    held = held[:heldout]
    keys = {c.key for c in held}
    rest = [c for c in seen if c.key not in keys]
    return [rest[i % len(rest)] for i in range(train)], held


class Writer:
    """Writes rows: deals phrases evenly and shows the facts that an answer needs, and some more."""

    def __init__(self, phrases: dict[str, Any], rng: random.Random) -> None:
        self.phrases, self.rng = phrases, rng
        self.decks: dict[tuple[str, ...], Deck] = {}
        self.asked: set[tuple[str, str]] = set()

    def _deck(self, *path: str) -> Deck:
        if path not in self.decks:
            cards: Any = self.phrases
            for name in path:
                cards = cards[name]
            self.decks[path] = Deck(cards, self.rng)
        return self.decks[path]

    def _question(self, case: Case) -> str:
        """The template of a question that this product was not asked yet."""
        product, all_ = case.product["id"], self.phrases["intents"][case.intent]["questions"]
        template = self._deck("intents", case.intent, "questions").deal(
            [question for question in all_ if (product, question) not in self.asked]
        )
        self.asked.add((product, template))
        return self._deck("greetings").deal() + template

    def _answer(self, case: Case) -> tuple[str, str, str]:
        """Templates of opening, body and invitation."""
        intent = self.phrases["intents"][case.intent]
        sold_out = not case.product["stock"]
        kind = "sold_out" if sold_out and "sold_out" in intent else "answers"
        fit = [a for a in intent[kind] if not (sold_out and {"stock", "delivery"} & {*fields(a)})]
        body = self._deck("intents", case.intent, kind).deal(fit)
        # An apology is opening enough.
        sorry = body.startswith("I am sorry")
        opening = "" if sorry else self._deck("openings", intent.get("opening", "plain")).deal()
        invitation = "sold_out" if sold_out else intent.get("invitation", "in_stock")
        return opening, body, self._deck("invitations", invitation).deal()

    def _facts(self, needed: set[str], case: Case, text: dict[str, str]) -> str:
        """The needed facts in any order, filled up with others to three, or two if one is long."""
        shown = [k for k in FACTS if k in needed]
        if not case.product["stock"]:
            shown = [k for k in shown if k != "restock"] + ["restock"]
        room = 2 if LONG & set(shown) else 3
        fillers = [k for k in FILLERS if k not in shown]
        self.rng.shuffle(fillers)
        shown += fillers[: max(0, room - len(shown))]
        self.rng.shuffle(shown)
        if "care" in shown:
            shown = [k for k in shown if k != "care"] + ["care"]
        return listed([FACTS[k].format(**text) for k in shown])

    def row(self, case: Case, name: str) -> dict[str, Any]:
        """One line of a data file."""
        text = words(case.product)
        question = self._question(case)
        opening, body, invitation = self._answer(case)
        if case.other:
            other = words(case.other)
            text |= {f"other_{k}": v for k, v in other.items()}
            needed = {f.removeprefix("other_") for f in fields(body)} & set(FACTS)
            keys = [k for k in FACTS if k in needed | {"use", "price"}]
            facts = [listed([FACTS[k].format(**t) for k in keys]) for t in (text, other)]
            shown = f"{text['The']} {facts[0]}. {other['The']} {facts[1]}."
        else:
            needed = set(fields(body)) | set(fields(question))
            shown = f"{text['The']} {self._facts(needed & set(FACTS), case, text)}."
        answer = " ".join(filter(None, (opening, body, invitation))).format(**text)
        user = f"{shown}\n{question.format(**text)}"
        return {
            "id": name,
            "prompt": [
                {"role": "system", "content": self.phrases["system"]},
                {"role": "user", "content": user},
            ],
            "ground_truth": answer,
            "answer": body.format(**text),
            "product": case.product["id"],
            "intent": case.intent,
            "data_source": "customer-service",
        }


def make(seed: int = SEED) -> dict[str, list[dict[str, Any]]]:
    """Rows by file name."""
    catalogue = yaml.safe_load((HERE / "catalogue.yaml").read_text(encoding="utf-8"))
    phrases = yaml.safe_load((HERE / "phrases.yaml").read_text(encoding="utf-8"))
    rng = random.Random(seed)
    everything = list(cases(catalogue["products"], list(phrases["intents"])))
    chosen: dict[str, list[Case]] = {"prompts": [], "heldout": []}
    for intent, spec in phrases["intents"].items():
        pool = [c for c in everything if c.intent == intent]
        train, held = split(pool, spec["rows"]["train"], spec["rows"]["heldout"], rng)
        chosen["prompts"] += train
        chosen["heldout"] += held
    writer = Writer(phrases, rng)
    files = {}
    for name, picked in chosen.items():
        rng.shuffle(picked)
        label = "train" if name == "prompts" else name
        files[f"{name}.jsonl"] = [
            writer.row(case, f"{label}-{i:04d}") for i, case in enumerate(picked, start=1)
        ]
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description="make the data of the customer-service example")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in make().items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / name).write_text(lines, encoding="utf-8", newline="\n")
        print(f"{out / name}: {len(rows)} rows")


if __name__ == "__main__":
    main()
