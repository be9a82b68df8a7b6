"""What every model of the run's YAML shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo


class Model(BaseModel):
    """Frozen; unknown keys are refused; nothing is converted (``"2"`` is no number, true is not 1).

    The docstring under a field is its description.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


T = TypeVar("T")
#: YAML has lists only; the models hold tuples.
Items = Annotated[tuple[T, ...], Field(strict=False)]
Pair = Annotated[tuple[T, T], Field(strict=False)]


@dataclass(frozen=True)
class OrForm:
    """In `Annotated`: the other form that a value may have, told to those who wrote neither."""

    text: str


def _from_base(path: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("base_dir")
    path = path.expanduser()
    return path if path.is_absolute() or base is None else Path(base) / path


#: A path that counts from the config's own folder; absolute once it is loaded.
LocalPath = Annotated[Path, Field(strict=False), AfterValidator(_from_base)]


def _model(text: str, info: ValidationInfo) -> str:
    folder = _from_base(Path(text), info)
    return str(folder) if folder.is_dir() else text


#: A model: a folder (absolute once it is loaded), or a name that only a resolver of models knows.
ModelName = Annotated[str, Field(min_length=1), AfterValidator(_model)]
