"""The models that were served on a data folder, and their receipts that await an audit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.durable_file import write_durably
from ledger.encoding.text_forms import moved, timestamp
from ledger.errors import LedgerError
from services.cli.up.supervisor import words
from services.generation.target.errors import TargetError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from services.cli.up.local_services import LocalServices


_POLICIES = 64  # the newest: earlier ones promise for times that are over, or for few

_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as `kolm up` served it: `flags` of an auditor with this model, `adapters` (NAME=DIR by identifier)."""

    base_cid: str
    name: str
    flags: tuple[str, ...]
    adapters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The number of receipts of a base, or of an adapter on it, that still have no owed verdict."""

    base_cid: str
    adapter_cid: str | None
    count: int


def remember(data_dir: Path, model: ServedModel) -> None:
    """Keep a model for the next start; its adapters join those it had before. Raises OSError."""
    known = remembered(data_dir)
    before = known.get(model.base_cid)
    adapters = {**(before.adapters if before else {}), **model.adapters}
    known[model.base_cid] = ServedModel(model.base_cid, model.name, model.flags, adapters)
    document = [asdict(each) for each in known.values()]
    write_durably(_file(data_dir), json.dumps(document, ensure_ascii=False, indent=1).encode())


def remembered(data_dir: Path) -> dict[str, ServedModel]:
    """The models by base; none if the file is missing or cannot be read, since it only gives names to identifiers."""
    try:
        document = json.loads(_file(data_dir).read_bytes())
        found = [ServedModel(**{**each, "flags": tuple(each["flags"])}) for each in document]
        return {each.base_cid: each for each in found}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _file(data_dir: Path) -> Path:
    return data_dir / "models.json"


def waiting(database: Path, now: datetime) -> list[Waiting]:
    """Receipts of a ledger's file that the log's policies owe a verdict, and whose deadline is after `now`; at a rate
    below 1 also receipts that no draw has chosen. Empty if there is no ledger, or an unreadable one, which the ledger
    service reports.
    """
    if not database.is_file():
        return []
    from ledger.sql.connect import connect_for_reading
    from ledger.sql.schema import check_revision

    with suppress(LedgerError), closing(connect_for_reading(database)) as opened, opened.reading() as connection:
        check_revision(connection, opened.name)
        return list(_waiting(connection, now))
    return []


def _waiting(connection: Connection, now: datetime) -> Iterator[Waiting]:
    from sqlalchemy import and_, exists, false, func, or_, select

    from ledger.sql.schema import receipts, verdicts

    promised = [
        and_(
            receipts.c.index > span.first,
            receipts.c.index < span.end,
            receipts.c.issued_at > moved(timestamp(now), -span.within_seconds),
        )
        for span in _promises(connection)
    ]
    judged = exists().where(verdicts.c.receipt_index == receipts.c.index)
    kinds = (receipts.c.base_cid, receipts.c.adapter_cid)
    found = select(*kinds, func.count()).where(or_(false(), *promised), ~judged).group_by(*kinds).order_by(*kinds)
    for base_cid, adapter_cid, count in connection.execute(found):
        yield Waiting(base_cid, adapter_cid, count)


@dataclass(frozen=True, slots=True)
class _Promise:
    """A policy that promises verdicts for the entries after `first` and before `end`."""

    first: int
    end: int
    within_seconds: int


def _promises(connection: Connection) -> Iterator[_Promise]:
    from sqlalchemy import select

    from ledger.documents.audit import AuditPolicy
    from ledger.documents.signed_document import read_document
    from ledger.sql.queries import entry_bytes
    from ledger.sql.schema import leaves
    from ledger.tree.entry import Entry

    newest = select(leaves.c.index, leaves.c.entry).where(leaves.c.kind == "audit_policy")
    end = 1 << 62
    for index, entry in connection.execute(newest.order_by(leaves.c.index.desc()).limit(_POLICIES)):
        policy = read_document(Entry.from_bytes(entry_bytes(index, entry)).envelope)
        if isinstance(policy, AuditPolicy) and policy.rate > 0.0:
            yield _Promise(index, end, policy.within_seconds)
        end = index


def unaudited(services: LocalServices, now: datetime) -> Iterator[str]:
    """A line for each other model, or adapter, that was served on the folder and has receipts that await an audit.

    Reads the ledger only if another model was, or may have been, served there.
    """
    models, flags, adapters = remembered(services.data_dir), audit_flags(services), adapter_words(services)
    if all(each.flags == flags and set(each.adapters.values()) <= set(adapters) for each in models.values()) and models:
        return
    found = waiting(services.data_dir / "ledger.sqlite3", now)
    own = _own(services, models, flags) if found else frozenset()
    for each in found:
        model = models.get(each.base_cid)
        adapter = model and each.adapter_cid and model.adapters.get(each.adapter_cid)
        if each.base_cid not in own or (adapter and adapter not in adapters):
            yield _line(each, model, services.data_dir)


def _own(services: LocalServices, models: Mapping[str, ServedModel], flags: Sequence[str]) -> frozenset[str]:
    """The base that is about to be served; for an engine whose weights are not here, the bases that it had before."""
    from services.generation.target.identity import base_cid

    if services.model is None:
        return frozenset(cid for cid, model in models.items() if model.flags == flags)
    with suppress(TargetError, OSError):  # the services report why it cannot be served
        return frozenset((base_cid(services.model),))
    return frozenset()


def remember_served(services: LocalServices, address: str) -> None:
    """Keep the model that the generation service at `address` serves. If the service does not answer, the next start
    has no name for the model's identifier.
    """
    from services.cli.up.local_services import OWNER, token_file
    from services.client.errors import KolmError
    from services.client.generation.runtime import Runtime
    from services.generation.target.model_path import name_of

    with suppress(KolmError, OSError):
        token = token_file(services.data_dir, OWNER).read_text(encoding="ascii").strip()
        with Runtime.connect(address, token=token) as runtime:
            info = runtime.model_info(timeout=_SECONDS)
        by_name = {word.partition("=")[0]: word for word in adapter_words(services)}
        adapters = {cid: by_name[name] for name, cid in info.adapters.items() if name in by_name}
        name = services.named_model if services.model is None else name_of(services.model)
        remember(services.data_dir, ServedModel(info.base_cid, name, audit_flags(services), adapters))


def audit_flags(services: LocalServices) -> tuple[str, ...]:
    """The flags of `kolm audit run` with the model that these services have, but for its adapters."""
    settings = {name: value for name, value in services.auditor_settings.items() if name != "adapter"}
    return words(model=None if services.model is None else _named(services.model), **settings)


def adapter_words(services: LocalServices) -> tuple[str, ...]:
    """NAME=DIR of each adapter, from any folder."""
    given: Any = services.auditor_settings.get("adapter") or ()
    return tuple(f"{name}={Path(folder).resolve()}" for name, _, folder in (each.partition("=") for each in given))


def _named(model: Path) -> str:
    """A value for --model that names the model from any folder."""
    from services.generation.target.model_path import model_path, name_of

    name = name_of(model)
    with suppress(TargetError):
        if model_path(name).resolve() == model.resolve():
            return name
    return str(model.resolve())


def _line(owed: Waiting, model: ServedModel | None, data_dir: Path) -> str:
    """The waiting receipts, and the command that replays them; `model` is None if the folder has no record of it."""
    flags = [*(model.flags if model else ("--model", "MODEL"))]
    adapter = owed.adapter_cid and (model.adapters.get(owed.adapter_cid, "NAME=DIR") if model else "NAME=DIR")
    if adapter and adapter not in flags:
        flags += ["--adapter", adapter]
    whose = f"the adapter {adapter} ({owed.adapter_cid})" if adapter and model else "another model"
    named = f"{model.name}, {owed.base_cid}" if model else owed.base_cid
    plural = "receipt" if owed.count == 1 else "receipts"
    command = shlex.join(["kolm", "audit", "run", *flags, "--data-dir", str(data_dir)])
    return (
        f"{owed.count} {plural} of {whose} ({named}) await an audit, which this auditor leaves to an auditor with that "
        f"model until their deadline: `{command}`, while these services run, replays them"
    )
