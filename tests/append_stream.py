"""Many entries over one AppendEntries call, as the outbox of a generation server sends them."""

from collections.abc import Iterable

from kolm.ledger.v1 import ledger_pb2 as pb
from ledger.documents.content import Content
from services.client.channel import Stream, plain_value
from services.client.errors import KolmError, decode_status
from services.client.ledger import log_wire
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import Appended


def append_many(client: LedgerClient, entries: Iterable[tuple[bytes, Content | None]]) -> Stream[Appended | KolmError]:
    """The answers in the order of the entries, of which each is a request of its own."""
    requests = (pb.AppendEntriesRequest(entries=[_new_entry(*each)]) for each in entries)
    return Stream(client._stub.AppendEntries(requests, metadata=client.connection.metadata), _answer)


def _new_entry(envelope: bytes, content: Content | None) -> pb.NewEntry:
    return pb.NewEntry(envelope=envelope, content=None if content is None else log_wire.content_message(content))


def _answer(response: pb.AppendEntriesResponse) -> Appended | KolmError:
    (result,) = response.results
    return decode_status(result.error) if result.HasField("error") else plain_value(Appended, result.appended)
