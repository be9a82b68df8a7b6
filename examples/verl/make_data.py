"""Write ../customer-service's prompts in the form that verl reads: two files beside this one.

python examples/verl/make_data.py
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHOP = HERE.parent / "customer-service"


def main() -> None:
    for source, target in (("prompts.jsonl", "train.jsonl"), ("heldout.jsonl", "val.jsonl")):
        lines = (SHOP / source).read_text("utf-8").splitlines()
        rows = [verl_row(json.loads(line), number) for number, line in enumerate(lines)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (HERE / target).write_text(text, "utf-8")
        print(f"{HERE / target}: {len(rows)} prompts")


def verl_row(row: dict[str, object], number: int) -> dict[str, object]:
    """A prompt with what verl looks for. A mount reads any column by its name: those beside the
    prompt, and those in `extra_info` and `reward_model`."""
    return {
        "prompt": row["prompt"],
        "data_source": row["data_source"],
        "ability": "customer-service",
        "reward_model": {"style": "rule", "ground_truth": row["ground_truth"]},
        "extra_info": {"index": number, "answer": row["answer"], "intent": row["intent"]},
    }


if __name__ == "__main__":
    main()
