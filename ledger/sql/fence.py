"""The fence: the last process that opened the ledger is its writer, and every write of an earlier one fails."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from ledger.errors import StoreLocked
from ledger.sql.schema import fence

_EPOCH = select(fence.c.epoch).with_for_update()


class Fence:
    """The epoch of one writer. A lock can be lost without anybody noticing (a broken connection, a file system without
    locks); the epoch is looked at inside the transaction that writes, so a stale writer can never write.
    """

    def __init__(self, connection: Connection) -> None:
        """Begin a new epoch, in the connection's transaction; it shuts all earlier writers out at its commit."""
        connection.execute(update(fence).values(epoch=fence.c.epoch + 1))
        self.epoch = int(connection.execute(select(fence.c.epoch)).scalar_one())

    def touch(self, connection: Connection) -> None:
        """Write the epoch again: a change of nothing that a database without room refuses as it would an entry."""
        connection.execute(update(fence).values(epoch=self.epoch))

    def check(self, connection: Connection) -> None:
        """Raises StoreLocked where a later epoch has begun; else none can begin before this transaction ends."""
        epoch = connection.execute(_EPOCH).scalar()
        if epoch != self.epoch:
            raise StoreLocked(
                f"another process has taken this ledger over (epoch {epoch}, this one wrote in {self.epoch}); "
                "run one ledger service for a database"
            )
