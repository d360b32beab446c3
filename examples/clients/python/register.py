"""A service that registers itself under a lease, with the official Kubernetes client.

    pip install -r requirements.txt
    python register.py web-1 10.0.0.17:8080

Takes KUBECONFIG or the service account of its pod, and NAMESPACE. The exit code is 4 if the lease is lost.
"""

import datetime
import os
import signal
import sys
import threading
import time

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

LEASES = {"group": "lessor.dev", "version": "v1alpha1", "plural": "leases"}
MAP = "endpoints"


def now():
    """Seconds of a clock that is never set and that, on Linux, counts the machine's sleep."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def say(*words):
    print(f"{NAME}:", *words, file=sys.stderr, flush=True)


class Lost(Exception):
    """The lease is over, or has to be taken for it."""


class Lease:
    """A lease that this process holds."""

    def __init__(self, namespace, name, ttl):
        self.api, self.place = client.CustomObjectsApi(), {**LEASES, "namespace": namespace}
        self.name = name
        body = {
            "apiVersion": "lessor.dev/v1alpha1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": {"ttlSeconds": ttl, "holder": name},
        }
        sent = now()  # time counts from before the request is sent
        lease = self.api.create_namespaced_custom_object(**self.place, body=body)
        self.uid = lease["metadata"]["uid"]
        while "grantedTTLSeconds" not in lease.get("status", {}):
            time.sleep(0.2)
            lease = self.api.get_namespaced_custom_object(**self.place, name=name)
        self._believe(sent, lease)

    def _believe(self, sent, lease):
        # What is granted counts, not what was asked for.
        self.ttl = lease["status"]["grantedTTLSeconds"]
        self.deadline = sent + self.ttl
        self.renew_at = sent + self.ttl / 3
        # Early enough to stop in time whatever the lease stands for.
        self.lost_at = self.deadline - self.ttl / 10

    def renew(self):
        """Renews once; raises Lost if the lease is over."""
        text = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        # A new time for each try, and the uid: a request that is late renews no other lease of this name.
        patch = {"metadata": {"uid": self.uid}, "spec": {"renewTime": text}}
        sent = now()
        # No try lasts longer than the lease can be relied on: half of that for connecting, half for the answer.
        patience = max(0.02, min(2, self.lost_at - sent)) / 2
        try:
            lease = self.api.patch_namespaced_custom_object(
                **self.place, name=self.name, body=patch, _request_timeout=(patience, patience)
            )
        except ApiException as error:
            if error.status in (404, 422):  # gone; or "lease has ended: grant a new one"
                raise Lost(error.body) from error
            raise
        self._believe(sent, lease)

    def keep_alive(self, stop):
        """Renews at a third of the TTL until `stop` is set; raises Lost before the deadline if that fails."""
        next_try = self.renew_at  # counted from the grant, however long it took to get here
        while not stop.wait(max(0, next_try - now())):
            try:
                self.renew()
                say("renewed")
                next_try = self.renew_at
            except Lost:
                raise
            except Exception as error:  # whatever it is, the lease lives until its deadline
                if now() >= self.lost_at:
                    raise Lost("not renewed in time") from error
                say("can't renew, tries again:", error)
                next_try = now() + 0.2

    def revoke(self):
        # Only this lease, and none that was made under its name since.
        only_this = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=self.uid))
        self.api.delete_namespaced_custom_object(**self.place, name=self.name, body=only_this)


def register(namespace, lease, key, value):
    """The key and its attachment in one write; the first service makes the ConfigMap."""
    maps = client.CoreV1Api()
    entry = {"metadata": {"name": MAP, "annotations": {f"key.lessor.dev/{key}": lease}}, "data": {key: value}}
    for _ in range(3):
        try:
            return maps.patch_namespaced_config_map(MAP, namespace, entry)
        except ApiException as error:
            if error.status != 404:
                raise
        try:
            return maps.create_namespaced_config_map(namespace, entry)
        except ApiException as error:
            if error.status != 409:
                raise


def main(address):
    try:
        config.load_incluster_config()
    except config.ConfigException:
        config.load_kube_config()
    # The retries of the library know nothing of the lease's deadline.
    settings = client.Configuration.get_default_copy()
    settings.retries = 0
    client.Configuration.set_default(settings)
    namespace = os.environ.get("NAMESPACE", "default")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    lease = Lease(namespace, NAME, int(os.environ.get("TTL", "15")))
    say(f"granted for {lease.ttl} s")
    register(namespace, NAME, NAME, address)
    say("registered")
    try:
        lease.keep_alive(stop)
    except Lost as lost:
        say("lost:", lost)
        return 4
    lease.revoke()
    say("revoked")
    return 0


if __name__ == "__main__":
    NAME = sys.argv[1]
    sys.exit(main(sys.argv[2]))
