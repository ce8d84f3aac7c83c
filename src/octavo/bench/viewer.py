"""One who watches a server's live page while it is measured: reads the event stream and does nothing with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from octavo.bench.load_connection import Address
from octavo.errors import EngineFault

EVENTS = "/v1/internal/events"
_READ_BYTES = 1 << 16


@asynccontextmanager
async def watching(address: Address) -> AsyncIterator[None]:
    """Somebody watches while this is open. Raises `EngineFault` if the server shows nothing, or stops too early."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        request = f"GET {address.base}{EVENTS} HTTP/1.1\r\nhost: {address.authority}\r\n\r\n"
        writer.write(request.encode("ascii"))
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise EngineFault(f"{EVENTS} answered {head.splitlines()[0].decode('latin-1')}; nothing can be watched")
        await reader.read(_READ_BYTES)  # the first picture
        reading = asyncio.create_task(_read(reader))
        try:
            yield
            if reading.done():
                raise EngineFault(f"{EVENTS} ended while it was watched")
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
    finally:
        writer.close()
        await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(_READ_BYTES):
        pass
