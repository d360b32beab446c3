"""A service that registers itself by a key in a shared ConfigMap, which vanishes with the service.

    python register.py web-1 10.0.0.17:8080

Uses the kubeconfig, or the service account of its pod, and NAMESPACE. The exit code is 4 if the lease is lost.
"""

import logging
import os
import signal
import sys
import threading

from kubernetes import config

import lessor


def main(name: str, address: str) -> int:
    config.load_config()
    leases = lessor.LeaseClient(os.environ.get("NAMESPACE", "default"))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with leases.lease(name, ttl=float(os.environ.get("TTL", "15")), holder=name) as held:
            held.on_loss(lambda _: stop.set())
            leases.register(name, "endpoints", name, address)
            logging.info("registered")
            stop.wait()
    except lessor.LeaseLostError as lost:
        logging.error("stop the service: %s", lost)
        return 4
    logging.info("revoked")
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("lessor").setLevel(logging.DEBUG)
    sys.exit(main(sys.argv[1], sys.argv[2]))
