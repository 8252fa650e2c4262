"""Connections to the server: half-sent requests are closed in time, and none keeps others out."""

import asyncio
from collections import Counter, OrderedDict
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds in which the head of a request must arrive, once its connection stands or its first byte is there.
HEAD_LIMIT = 8.0
# Connections without a request under way: above this the one that waits longest is closed for a new one; no client
# may have more than its share of them.
MOST_WAITING, MOST_WAITING_EACH = 160, 120


class Waiting:
    """Connections on which no request is under way, the longest waiting first."""

    def __init__(self) -> None:
        self._found: OrderedDict[Connection, str] = OrderedDict()
        self._clients: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, connection: "Connection") -> None:
        """Take one in, and close another where there are too many."""
        self.discard(connection)
        client = str(connection.client[0]) if connection.client else ""
        self._found[connection] = client
        self._clients[client] += 1
        if self._clients[client] > MOST_WAITING_EACH:
            self._oldest([found for found, whose in self._found.items() if whose == client]).give_up()
        elif len(self._found) > MOST_WAITING:
            self._oldest(list(self._found)).give_up()

    @staticmethod
    def _oldest(found: "list[Connection]") -> "Connection":
        """The longest waiting of those that never had a request answered, or of all."""
        return next((one for one in found if one.cycle is None), found[0])

    def discard(self, connection: "Connection") -> None:
        """Forget one that has a request now, or is gone."""
        client = self._found.pop(connection, None)
        if client is not None:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


class Connection(H11Protocol):
    """uvicorn's connection, with a limit of time for the head of a request."""

    waiting = Waiting()
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the clock."""
        super().connection_made(transport)
        self._start_clock()
        self.waiting.add(self)

    def data_received(self, data: bytes) -> None:
        """Read; a request that has begun to run stops the clock, the first byte of a next one starts it again."""
        if self._timer is None and self._idle():
            self._start_clock()
            self.waiting.add(self)
        super().data_received(data)
        if not self._idle():
            self._stop_clock()
            self.waiting.discard(self)

    def on_response_complete(self) -> None:
        """Wait for the next request, as long as uvicorn keeps a connection alive."""
        self._stop_clock()
        super().on_response_complete()
        if not self.transport.is_closing():
            self.waiting.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_clock()
        self.waiting.discard(self)
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close a connection on which nothing is under way."""
        self._stop_clock()
        self.waiting.discard(self)
        if not self.transport.is_closing():
            # Nobody is there to read a farewell, and its buffers are wanted back now.
            self.transport.abort()

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_clock(self) -> None:
        self._stop_clock()
        self._timer = self.loop.call_later(HEAD_LIMIT, self.give_up)

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
