"""A provider's config model as rows of a table and as an example of the YAML that sets it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

#: How many settings with a default an example shows.
SHOWN = 3

_BOUNDS = {
    "minimum": ">= {}",
    "exclusiveMinimum": "> {}",
    "maximum": "<= {}",
    "exclusiveMaximum": "< {}",
    "minLength": "{} characters or more",
    "maxLength": "{} characters or fewer",
    "minItems": "{} or more",
    "maxItems": "{} or fewer",
    "pattern": "matching {}",
}


@dataclass(frozen=True)
class Setting:
    """One key of ``init_kwargs``.

    Args:
        key: the key, dotted where it stands in a nested mapping.
        type: its type and bounds in words.
        default: the default as YAML would write it, None where the key is required.
        description: the docstring under the field.
    """

    key: str
    type: str
    default: str | None
    description: str


class _Schema(GenerateJsonSchema):
    """A schema of every model: a type that JSON has no word for is shown as ``any``."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Silent: a default that JSON cannot hold is left out of the schema."""


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a provider's config."""
    return model.model_json_schema(schema_generator=_Schema)


def settings(schema: Mapping[str, Any]) -> list[Setting]:
    """Every key of the config whose `schema` it is, those of nested models after their parent."""
    return list(_walk(schema, schema.get("$defs", {}), "", frozenset()))


def example_kwargs(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Values for ``init_kwargs``: what is required or comes with an example, else some defaults."""
    defs, required = schema.get("$defs", {}), schema.get("required", ())
    properties = schema.get("properties", {})
    values = {
        key: _example(key, prop, defs)
        for key, prop in properties.items()
        if key in required or "examples" in prop
    }
    if values:
        return values
    defaults = {
        key: prop["default"] for key, prop in properties.items() if prop.get("default") is not None
    }
    return dict(list(defaults.items())[:SHOWN])


def example_yaml(name: str, role: str, kwargs: Mapping[str, Any]) -> str:
    """The ``reward:`` fragment that mounts the plugin `name`."""
    import yaml

    mount: dict[str, Any] = {"type": name, "plugin": name}
    mount.update({"role": "gate", "penalty": -1.0} if role == "gate" else {"weight": 1.0})
    if kwargs:
        mount["init_kwargs"] = dict(kwargs)
    text: str = yaml.safe_dump({"reward": [mount]}, sort_keys=False, allow_unicode=True)
    return text


def _walk(
    schema: Mapping[str, Any], defs: Mapping[str, Any], prefix: str, seen: frozenset[str]
) -> Iterator[Setting]:
    required = schema.get("required", ())
    for name, prop in schema.get("properties", {}).items():
        default = None if name in required else _literal(prop.get("default"))
        text = " ".join(prop.get("description", "").split())
        yield Setting(prefix + name, _type(prop, defs), default, text)
        for reference in _references(prop):
            if reference not in seen:
                nested = defs[reference]
                yield from _walk(nested, defs, f"{prefix}{name}.", seen | {reference})


def _references(prop: Mapping[str, Any]) -> Iterator[str]:
    """The nested models that a property may hold, itself or as one of several alternatives."""
    for option in (prop, *prop.get("anyOf", ()), *prop.get("allOf", ())):
        if "$ref" in option:
            yield option["$ref"].rsplit("/", 1)[-1]


def _type(prop: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    if "$ref" in prop:
        return _type(defs[prop["$ref"].rsplit("/", 1)[-1]], defs)
    if "enum" in prop:
        return " | ".join(_literal(value) for value in prop["enum"])
    if "const" in prop:
        return _literal(prop["const"])
    for combination in ("anyOf", "oneOf", "allOf"):
        if combination in prop:
            return " | ".join(dict.fromkeys(_type(option, defs) for option in prop[combination]))
    kind = prop.get("type", "any")
    if kind == "array" and "items" in prop:
        kind = f"list of {_type(prop['items'], defs)}"
    elif kind == "array":
        kind = "list"
    elif kind == "object":
        values = prop.get("additionalProperties")
        kind = f"mapping to {_type(values, defs)}" if isinstance(values, dict) else "mapping"
    elif kind == "string" and prop.get("format") in ("path", "file-path", "directory-path"):
        kind = "path"
    return ", ".join([str(kind), *_bounds(prop)])


def _bounds(prop: Mapping[str, Any]) -> Iterator[str]:
    if prop.get("minItems") is not None and prop.get("minItems") == prop.get("maxItems"):
        yield f"of {prop['minItems']}"
        prop = {key: value for key, value in prop.items() if key not in ("minItems", "maxItems")}
    if 1 in (prop.get("minLength"), prop.get("minItems")):
        yield "not empty"
        prop = {key: value for key, value in prop.items() if key not in ("minLength", "minItems")}
    if "minimum" in prop and "maximum" in prop:
        yield f"{_literal(prop['minimum'])} to {_literal(prop['maximum'])}"
        prop = {key: value for key, value in prop.items() if key not in ("minimum", "maximum")}
    yield from (text.format(_literal(prop[key])) for key, text in _BOUNDS.items() if key in prop)


def _example(key: str, prop: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    if prop.get("examples"):
        return prop["examples"][0]
    if prop.get("default") is not None:
        return prop["default"]
    if "$ref" in prop:
        nested = defs[prop["$ref"].rsplit("/", 1)[-1]]
        return _example(key, nested, defs) if "enum" in nested else example_kwargs(nested)
    if "enum" in prop:
        return prop["enum"][0]
    for option in (*prop.get("anyOf", ()), *prop.get("allOf", ())):
        return _example(key, option, defs)
    if prop.get("format") in ("path", "file-path", "directory-path"):
        return f"path/to/{key}"
    low = prop.get("minimum", prop.get("exclusiveMinimum", 0))
    return {"integer": int(low) + 1, "number": float(low) + 1.0, "boolean": True, "array": []}.get(
        prop.get("type", ""), {} if prop.get("type") == "object" else key
    )


def _literal(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
