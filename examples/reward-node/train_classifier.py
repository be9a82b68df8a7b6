"""Trains the classifier of `plain_words.py` on `sentences.jsonl`, in seconds, on a CPU.

    python examples/reward-node/train_classifier.py [--out FILE]

It writes ``runs/plain_words.safetensors``, not over the file that lies beside it. Every fifth pair
of sentences is held out; what the classifier makes of them is printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from plain_words import PlainWords
from safetensors.torch import save_file
from torch import nn

FOLDER = Path(__file__).resolve().parent


def read(path: Path) -> list[tuple[str, float]]:
    """``(text, 1.0 for plain)`` of each labelled sentence."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [(row["text"], 1.0 if row["label"] == "plain" else 0.0) for row in rows]


def train(rows: list[tuple[str, float]], steps: int = 150) -> PlainWords:
    """A classifier that tells `rows` apart."""
    torch.manual_seed(0)
    model = PlainWords()
    nn.init.normal_(model.bag.weight, std=0.1)
    texts, labels = [text for text, _ in rows], torch.tensor([label for _, label in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.05)
    for _ in range(steps):
        loss = nn.functional.binary_cross_entropy_with_logits(model(texts), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def accuracy(model: PlainWords, rows: list[tuple[str, float]]) -> float:
    """The share of `rows` on the right side."""
    with torch.no_grad():
        said = model([text for text, _ in rows]) > 0
    return float((said == torch.tensor([label > 0.5 for _, label in rows])).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs") / "plain_words.safetensors")
    out = parser.parse_args().out
    rows = read(FOLDER / "sentences.jsonl")
    held_out = [row for i, row in enumerate(rows) if i // 2 % 5 == 4]
    model = train([row for row in rows if row not in held_out])
    print(f"{len(held_out)} held-out sentences: {accuracy(model, held_out):.0%} told apart")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
