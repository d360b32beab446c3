"""The same as the package lessor, with asyncio. Needs kubernetes_asyncio: `pip install lessor[asyncio]`."""

from lessor.aio._loop import new_api_client
from lessor.aio.client import HeldLease, LeaseClient, lease
from lessor.aio.concurrency import Election, Leader, Mutex, Session, session

__all__ = [
    "Election",
    "HeldLease",
    "Leader",
    "LeaseClient",
    "Mutex",
    "Session",
    "lease",
    "new_api_client",
    "session",
]
