"""The same as register.py with asyncio.

python register_async.py web-1 10.0.0.17:8080
"""

import asyncio
import logging
import os
import signal
import sys

import lessor
import lessor.aio


async def main(name: str, address: str) -> int:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        async with (
            lessor.aio.LeaseClient(os.environ.get("NAMESPACE", "default")) as leases,
            leases.lease(name, ttl=float(os.environ.get("TTL", "15")), holder=name) as held,
        ):
            await leases.register(name, "endpoints", name, address)
            logging.info("registered")
            # Cancelled, with an error, if the lease is lost first.
            await held.guard(stop.wait())
    except lessor.LeaseLostError as lost:
        logging.error("stop the service: %s", lost)
        return 4
    logging.info("revoked")
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("lessor").setLevel(logging.DEBUG)
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2])))
