"""YAML text: what is read, what is refused and where, and what is written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from verl_core.config.document import dump_yaml, load_yaml, parse_yaml
from verl_reward_sdk import ConfigError


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 1\nb: .nan", "f.yaml:2:4", ".nan"),
        ("a: [1, -.inf]", "f.yaml:1:8", "-.inf"),
        ("a: 1e999", "f.yaml:1:4", "too large"),
        ("a: " + "9" * 5000, "f.yaml:1:4", "too large"),
        ("a: 9223372036854775808", "f.yaml:1:4", "too large"),
        ("a: 1\nb: 2\na: 3", "f.yaml:3:1", "'a' stands here a second time (first in line 1)"),
        ("x:\n  'a': 1\n  a: 1", "f.yaml:3:3", "second time"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "f.yaml:1:4",
            "!!python/object/apply:os.system",
        ),
        ("a: !!python/name:os.system ''", "f.yaml:1:4", "not allowed"),
        ("a: !!set {x}", "f.yaml:1:4", "!!set"),
        ("a: !mine x", "f.yaml:1:4", "!mine"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1", "second YAML document"),
        ("a: &x [*x]", "f.yaml:1:4", "alias of itself"),
        ("a: b: c", "f.yaml:1:5", "quotes"),
        ("a:\n\tb: 1", "f.yaml:2:1", "spaces, not with tabs"),
        ("a: {p: ${oc.env:P}}", "f.yaml:1:9", "put quotes around ${…}"),
        ("a: *nowhere", "f.yaml:1:4", "nowhere"),
        ("a: [1,", "f.yaml:1:7", "not YAML"),
        ("a: \x07", "f.yaml:1:4", "U+0007"),
        ("? [1]\n: 2", "f.yaml:1:3", "key"),
        ("null: 2", "f.yaml:1:1", "key"),
        ('a: "\\ud800"', "f.yaml:1:4", "half of a surrogate pair (\\ud800 …)"),
        ("a: {<<: 3}", "f.yaml:1:9", "mappings only"),
    ],
)
def test_what_has_no_place_in_a_config_is_refused_with_its_line_and_column(
    text: str, place: str, words: str
) -> None:
    message = refusal(text)
    assert message.startswith(place + ": ")
    assert words in message


def test_aliases_that_multiply_are_refused_before_they_fill_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    assert "aliases" in refusal("\n".join(lines))


def test_merge_keys_that_multiply_are_refused_too() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}], p{i}: [*a{i - 1}, *a{i - 1}]}}"
        for i in range(1, 30)
    ]
    assert "aliases" in refusal("\n".join(lines))


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "- " * 5000])
def test_deep_nesting_is_refused_and_not_a_recursion_error(text: str) -> None:
    assert "nested deeper" in refusal(text)


def test_an_alias_is_written_out_and_a_merge_yields_to_the_mappings_own_keys() -> None:
    root = parse_yaml("a: &x {p: 1, q: 2}\nb: {q: 3, <<: *x}\nc: *x", "f.yaml")
    assert root.unwrap() == {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}, "c": {"p": 1, "q": 2}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("5.", 5.0),
        ("+.5E3", 500.0),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", 10),
        ("-7", -7),
        ("True", True),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("on", "on"),
        ("NO", "NO"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-11-29", "2026-11-29"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ('"\\ud83d\\ude00"', "😀"),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    read = parse_yaml(f"a: {text}", "f.yaml").unwrap()["a"]
    assert (type(read), read) == (type(value), value)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(["1e-5", "yes", "on", "null", "~", "0o7", ".nan", "<<", "=", "1:30", "---"])
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_what_is_written_is_read_back_the_same(value: dict[str, object]) -> None:
    read = parse_yaml(dump_yaml(value), "f.yaml").unwrap()
    assert read == value
    assert repr(read) == repr(value)  # 1 is not 1.0 is not True; -0.0 is not 0.0


@example("\r\t")
@example("a: 1\x85\t")
@example("a: 1\u2028\t")
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_with_a_config_error(text: str) -> None:
    refused: ConfigError | None = None
    value: object = None
    try:
        value = parse_yaml(text, "f.yaml").unwrap()
    except ConfigError as error:
        refused = error
    assert refused is None or refused.line is not None
    assert not isinstance(value, float) or math.isfinite(value)


def test_bytes_that_are_not_utf8_are_named_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes("a: 1\nb: é\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"run\.yaml:2:4: byte 0xe9 is not UTF-8"):
        load_yaml(path)


def test_utf16_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes("a: 1\n".encode("utf-16"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_yaml(path)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes("\ufeffa: 1\n".encode())
    node = load_yaml(path)
    assert node.unwrap() == {"a": 1}


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("reward: []")
    with pytest.raises(ConfigError, match=r"no such file .*did you mean '.*config\.yaml'"):
        load_yaml(tmp_path / "confg.yaml")


def test_a_data_file_in_a_configs_place_is_refused_early() -> None:
    assert "no run's YAML has so many" in refusal("- a\n" * 60_000)


def test_a_folder_and_an_oversized_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="folder"):
        load_yaml(tmp_path)
    path = tmp_path / "big.yaml"
    path.write_bytes(b"# " + b"x" * (1 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        load_yaml(path)


def test_every_node_knows_its_place() -> None:
    root = parse_yaml("a:\n  - b: 1\n    c: [x, y]\n", "f.yaml")
    item, depth = root.find(("a", 0, "c", 1))
    assert depth == 4
    assert (item.origin.line, item.origin.column) == (3, 12)
    mapping, _ = root.find(("a", 0, "c"))
    assert mapping.key_origin is not None
    assert (mapping.key_origin.line, mapping.key_origin.column) == (3, 5)
