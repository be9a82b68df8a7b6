"""Newline-delimited JSON: a row a line in, a line a row out, in order, in bounded memory.

Lines are read as they come, scored in slices under one lease, and answered before further ones are
read: a client that does not read its answers is read from no more. A line that cannot be scored is
answered, in its place, by ``{"line": n, "error": {…}}``.

Rows of a group that follow each other are never cut apart.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from verl_core.control.media import NDJSON
from verl_core.control.metrics.requests import note
from verl_core.control.problem import Problem
from verl_core.control.scoring.answer import encoded, rows_of
from verl_core.control.scoring.batch import Rows, errors_of, invalid, wrong_rows
from verl_core.control.scoring.joined import Part
from verl_core.control.scoring.models import ScoreOptions, ScoreRow
from verl_core.control.scoring.service import ScoreService
from verl_core.rewards.lease import Lease

_LARGEST_LINE = 1 << 20
_SLICE_BYTES = 1 << 20
_LARGEST_GROUP = 4096
_FLAGS = {"true": True, "1": True, "": True, "false": False, "0": False}
_OPTIONS = TypeAdapter(ScoreOptions)


def options_of() -> Iterator[tuple[str, dict[str, Any], str]]:
    """``(name, JSON schema, description)`` of what a stream's query may say."""
    schema = ScoreOptions.model_json_schema()["properties"]
    for name, found in schema.items():
        kind = found.get("type") or found["anyOf"][0].get("type", "string")
        yield name, {"type": kind}, f"Of a stream: {found['description']}"


def read_options(request: Request) -> ScoreOptions:
    """The query as options. Raises `Problem` (422)."""
    given: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name in ("explain", "training"):
            if text.lower() not in _FLAGS:
                raise _parameter(name, f"{text[:100]!r} is neither true nor false")
            given[name] = _FLAGS[text.lower()]
        elif name == "timeout":
            try:
                given[name] = float(text)
            except ValueError:
                raise _parameter(name, f"{text[:100]!r} is no number") from None
        else:
            given[name] = text
    try:
        return _OPTIONS.validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _parameter(str(first["loc"][-1]), str(first["msg"])) from error


def _parameter(name: str, detail: str) -> Problem:
    return invalid([{"parameter": name, "detail": detail}])


async def answer_stream(service: ScoreService, request: Request) -> Response:
    """Begin to answer; what is wrong with the request as a whole is a problem, and no stream."""
    options = read_options(request)
    _refuse_whole_batches(service)
    with service.admission.enter():  # there is room now; each slice takes its own
        lease = await service.lease(options)
    answers = _Stream(service, options, lease).answers(request)
    headers = {
        "X-Verl-Run": service.state.run_id,
        "X-Verl-Revision": str(lease.revision),
        "X-Verl-Generations": json.dumps(dict(lease.generations)),
    }
    return _Streamed(answers, headers={"Cache-Control": "no-store", **headers}, media_type=NDJSON)


class _Streamed(Response):
    """An answer in parts, made while the request is still read: unlike Starlette's own, which
    listens for a client that leaves by reading the request itself."""

    def __init__(self, parts: AsyncIterator[bytes], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for part in self._parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except ClientDisconnect:
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _refuse_whole_batches(service: ScoreService) -> None:
    whole = [m.name for m in service.engine.mounts.values() if m.config.normalize == "batch"]
    if whole:
        raise Problem(
            422,
            "needs-all-rows",
            f"{', '.join(whole)} is normalised over all rows (normalize: batch), and a stream is"
            " scored in slices: send the rows as one application/json body",
        )


class _Stream:
    """One stream under way.

    Args:
        lease: of all its slices.
    """

    def __init__(self, service: ScoreService, options: ScoreOptions, lease: Lease) -> None:
        self._service, self._options, self._lease = service, options, lease
        self._largest = min(_LARGEST_LINE, service.limits.body_bytes)
        # (line, the row or what is wrong with it), of the slice that is being gathered
        self._slice: list[tuple[int, ScoreRow | dict[str, Any]]] = []
        self._bytes = 0

    async def answers(self, request: Request) -> AsyncIterator[bytes]:
        """The answer, slice by slice."""
        note(request.scope, rows=0, revision=self._lease.revision)
        async for number, line in _lines(request.stream(), self._largest):
            row = self._read(line)
            if isinstance(row, ScoreRow) and row.sample_id is None:
                row.sample_id = str(number)
            if self._is_cut_before(row):
                yield await self._scored()
                note(request.scope, rows=number - 1)
            self._slice.append((number, row))
            self._bytes += 0 if line is None else len(line)
        if self._slice:
            last = self._slice[-1][0]
            yield await self._scored()
            note(request.scope, rows=last)

    def _read(self, line: bytes | None) -> ScoreRow | dict[str, Any]:
        if line is None:
            limit = f"the line is longer than {self._largest} bytes"
            return _error(413, "body-too-large", limit)
        try:
            return ScoreRow.model_validate_json(line)
        except ValidationError as error:
            found = errors_of(error, ScoreRow.model_fields)
            if found and found[0].get("json"):
                detail = f"the line is not JSON: {found[0]['detail']}"
                return _error(400, "malformed-json", detail)
            said = "; ".join(f"{one['pointer']}: {one['detail']}" for one in found[:3])
            return _error(422, "invalid-request", said, errors=found)

    def _is_cut_before(self, row: ScoreRow | dict[str, Any]) -> bool:
        """Whether the slice ends before this row."""
        count = len(self._slice)
        if count < self._service.limits.slice_rows and self._bytes < _SLICE_BYTES:
            return False
        if not count or count >= _LARGEST_GROUP:
            return bool(count)
        last = self._slice[-1][1]
        same = isinstance(row, ScoreRow) and isinstance(last, ScoreRow)
        return not (same and row.group is not None and row.group == last.group)  # type: ignore[union-attr]

    async def _scored(self) -> bytes:
        """The answers to the slice, which is empty then."""
        found, size = self._slice, self._bytes
        self._slice, self._bytes = [], 0
        kept = [(line, row) for line, row in found if isinstance(row, ScoreRow)]
        lines = {line: _line(line, row) for line, row in found if not isinstance(row, ScoreRow)}
        while kept:
            rows = Rows.of([row for _, row in kept])
            wrong = dict(reversed(wrong_rows(rows, self._service.reads)))
            if not wrong:
                break
            for row, told in wrong.items():
                pointer = {"pointer": f"#/{told['at']}", "detail": told["detail"]}
                error = _error(422, "invalid-request", told["detail"], errors=[pointer])
                lines[kept[row][0]] = _line(kept[row][0], error)
            kept = [one for number, one in enumerate(kept) if number not in wrong]
        if kept:
            lines.update(await self._answered(kept, size))
        return b"".join(lines[line] for line, _ in found)

    async def _answered(self, kept: list[tuple[int, ScoreRow]], size: int) -> dict[int, bytes]:
        numbers = [line for line, _ in kept]
        rows = Rows.of([row for _, row in kept])
        try:
            with await self._service.admission.wait(size, len(rows)):
                told = await self._service.score(
                    rows,
                    self._lease,
                    training=self._options.training,
                    size=size,
                    timeout=self._options.timeout,
                    receive=None,
                    then=self._written,
                )
        except Problem as problem:
            error = problem.document()
            return {line: _line(line, error) for line in numbers}
        return dict(zip(numbers, told, strict=True))

    def _written(self, part: Part) -> list[bytes]:
        ids = part.table.sample_ids
        return [encoded(row) for row in rows_of(part, ids, explain=self._options.explain)]


def _error(status: int, kind: str, detail: str, **more: Any) -> dict[str, Any]:
    return Problem(status, kind, detail, **more).document()


def _line(number: int, error: dict[str, Any]) -> bytes:
    return encoded({"line": number, "error": error})


async def _lines(
    chunks: AsyncIterator[bytes], largest: int
) -> AsyncIterator[tuple[int, bytes | None]]:
    """``(number from 1, line)`` of a body, without empty ones; None for one that is too long, of
    which nothing is kept."""
    parts: list[bytes] = []  # of the line that is still coming
    size, number = 0, 1
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            is_long = size + len(end) > largest
            line = b"".join([*parts, end])
            parts, size = [], 0
            if is_long or line.strip():
                yield number, None if is_long else line
            number += 1
        size += len(rest)
        parts = [] if size > largest else [*parts, rest]
    line = b"".join(parts)
    if size > largest or line.strip():
        yield number, None if size > largest else line
