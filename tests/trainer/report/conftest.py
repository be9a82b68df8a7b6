"""Run folders as the trainer writes them, with figures that are made up but hang together."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from verl_core.rewards.weights import WeightStore
from verl_core.trainer import jsonl

WEIGHTS = {"accuracy": 2.0, "tone": 1.0, "conversion": 0.5, "compliance": 0.5}
PRODUCTS = ["trail backpack", "cast-iron pan", "reading lamp", "rain jacket", "desk fan", "kettle"]
QUESTIONS = [
    "Does the {p} come with a warranty?",
    "How long does delivery of the {p} take?",
    "My {p} arrived damaged. What now?",
    "Is the {p} a good gift for my father?",
]
FACTS = "two-year warranty, delivered in three days, thirty days to return"
REFERENCE = (
    "Thank you for asking! The {p} has a two-year warranty, arrives within three days, and you"
    " may return it for thirty days. Shall I put one in your basket?"
)
WEAK = [
    "The {p} is the best in the world. It is the best. It is the best. It is the best you can buy,"
    " 100% guaranteed, and it is the best.",
    "I don't know about the {p}. Please look at the website or at the box for more information.",
    "As an AI language model I can say that the {p} is a product. Products have many features.",
]
STRONG = [
    "Thank you for asking! The {p} has a two-year warranty and arrives within three days. Shall I"
    " add it to your basket?",
    "Thank you for reaching out! You can return the {p} within thirty days, and it comes with a"
    " two-year warranty. Would you like to order it?",
]


def explain_row(
    raw: Mapping[str, float], gated: bool, *, weights: Mapping[str, float] = WEIGHTS
) -> tuple[float, dict[str, Any]]:
    """What ``table.explain(i)`` says of one row, and its fused reward."""
    mounts: dict[str, Any] = {}
    total = 0.0
    for name, value in raw.items():
        added = value * weights[name]
        total += added
        mounts[name] = {
            "role": "reward",
            "raw": value,
            "normalised": value,
            "weight": weights[name],
            "contribution": added,
            "status": "ok",
            "reason": f"{name}: {'holds' if value > 0.5 else 'does not hold'}",
            "severity": "none",
        }
    fused = min(-1.0, total) if gated else total
    mounts["guard"] = {
        "role": "gate",
        "raw": float(gated),
        "normalised": float(gated),
        "weight": None,
        "contribution": fused - total,
        "status": "ok",
        "reason": "'100% guaranteed' at 67-82" if gated else None,
        "severity": "veto" if gated else "none",
    }
    return fused, {
        "fused": fused,
        "additive": True,
        "revision": 1,
        "generations": {},
        "masked": None,
        "blocked": False,
        "gate": "veto" if gated else "none",
        "mounts": mounts,
    }


def held_out(prompts: int, skill: float, *, seed: int, answers: int = 1) -> list[dict[str, Any]]:
    """Held-out rows of a policy of `skill` in [0, 1]."""
    rows = []
    for index in range(prompts):
        draw = random.Random(seed * 100_003 + index)
        product = PRODUCTS[index % len(PRODUCTS)]
        question = QUESTIONS[index // len(PRODUCTS) % len(QUESTIONS)].format(p=product)
        for number in range(answers):
            good = draw.random() < skill
            response = draw.choice(STRONG if good else WEAK).format(p=product)
            gated = "100% guaranteed" in response
            noise = draw.gauss(0, 0.06)
            raw = {
                "accuracy": min(max((0.48 if good else 0.17) + noise, 0), 1),
                "tone": 1.0 if "Thank you" in response else 0.2,
                "conversion": 1.0 if response.endswith("?") else 0.0,
                "compliance": 0.9 if not gated else 0.4,
            }
            fused, explain = explain_row(raw, gated)
            rows.append(
                {
                    "sample_id": f"eval-{index}-{number}",
                    "prompt_id": f"p{index}",
                    "prompt": f"Product: {product} ({FACTS}).\nCustomer: {question}",
                    "response": response,
                    "reference": REFERENCE.format(p=product),
                    "reference_tokens": 38 + index % 5,
                    "finish_reason": "stop" if good or index % 3 else "length",
                    "tokens": len(response.split()) + 4,
                    "fused": fused,
                    "explain": explain,
                }
            )
    return rows


def step_figures(
    step: int, steps: int, weights: Mapping[str, float], revision: int
) -> dict[str, Any]:
    draw = random.Random(step)
    done = step / steps
    means = {
        "accuracy": 0.18 + 0.2 * done + draw.gauss(0, 0.02),
        "tone": 0.35 + 0.5 * done + draw.gauss(0, 0.05),
        "conversion": 0.2 + 0.55 * done + draw.gauss(0, 0.06),
        "compliance": 0.82 + 0.07 * done + draw.gauss(0, 0.01),
    }
    rate = max(0.0, 0.14 * (1 - done) + draw.gauss(0, 0.02))
    figures: dict[str, Any] = {"time": f"2026-01-01T00:{step:02}:00Z"}
    figures |= {f"reward/{name}/mean": value for name, value in means.items()}
    figures |= {"reward/guard/rate": rate, "reward/guard/veto": rate, "reward/guard/mean": rate}
    fused = sum(means[name] * weights[name] for name in means) - 2 * rate
    figures |= {"reward/fused/mean": fused, "reward/fused/std": 0.4}
    figures |= {f"weights/{name}": weight for name, weight in weights.items()}
    figures |= {
        "weights/revision": revision,
        "actor/loss": -0.02 + draw.gauss(0, 0.01),
        "actor/kl": 0.004 * step + abs(draw.gauss(0, 0.002)),
        "response/length_mean": 26 + 8 * done + draw.gauss(0, 1),
        "response/truncated": max(0.0, 0.2 - 0.18 * done),
        "timing_s/step": 15.2,
        "perf/rollout_tokens_per_s": 410 + draw.gauss(0, 12),
        "perf/update_tokens_per_s": 300 + draw.gauss(0, 9),
        "perf/peak_rss_gb": 3.9,
    }
    return figures


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(jsonl.encode(record) for record in records))


def build_run(
    folder: Path, *, steps: int = 16, prompts: int = 120, changed_at: int | None = 9
) -> Path:
    """A finished run in which somebody changed the weights before step `changed_at`."""
    folder.mkdir(parents=True)
    store = WeightStore(WEIGHTS, run_id="run-1", path=folder / "weights.db", gates=["guard"])
    metrics, samples = [], []
    for step in range(1, steps + 1):
        if step == changed_at:
            store.update(
                {"tone": 0.5, "conversion": 1.0},
                author="mia",
                reason="tone is learnt; sell more",
            )
        lease = store.lease(step)
        metrics.append({"step": step, **step_figures(step, steps, lease.weights, lease.revision)})
        rows = held_out(2, step / steps, seed=step)
        samples += [{"step": step, "group_id": row["prompt_id"], **row} for row in rows]
    store.close()
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "samples.jsonl", samples)
    write_lines(folder / "eval" / "before.jsonl", held_out(prompts, 0.15, seed=1))
    write_lines(folder / "eval" / "after.jsonl", held_out(prompts, 0.85, seed=2))
    state = {
        "run_id": "run-1",
        "status": "finished",
        "step": steps,
        "steps": steps,
        "started": "2026-01-01T00:00:00Z",
        "ended": "2026-01-01T00:04:31Z",
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "train_seconds": 243.2,
        "peak_rss_gb": 3.9,
    }
    (folder / "state.json").write_bytes(jsonl.encode(state))
    plugins = {"accuracy": "rouge", "tone": "rules", "conversion": "rules", "compliance": "rules"}
    reward: list[dict[str, Any]] = [
        {"type": name, "plugin": plugins[name], "weight": weight, "role": "reward"}
        for name, weight in WEIGHTS.items()
    ]
    reward.append({"type": "guard", "plugin": "safety", "role": "gate", "penalty": -1.0})
    config = {
        "name": "customer-service",
        "model": {"path": "HuggingFaceTB/SmolLM2-135M-Instruct"},
        "reward": reward,
        "rollout": {"n": 8, "prompts_per_step": 4, "max_new_tokens": 48},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    return folder


@pytest.fixture(name="held_out")
def held_out_fixture() -> Callable[..., list[dict[str, Any]]]:
    """Make held-out rows; arguments as `held_out`."""
    return held_out


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Build a run's folder; keyword arguments as `build_run`."""

    def make(**options: Any) -> Path:
        return build_run(tmp_path / "runs" / "customer-service", **options)

    return make
