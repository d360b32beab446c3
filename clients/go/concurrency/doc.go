// Package concurrency has sessions, locks and elections under the names of etcd's clientv3/concurrency, on top of leases of
// lessor.dev.
//
// A lock is a ConfigMap attached to the lease of a session. At most one session relies on it at a time; clients/MUTEX.md describes
// the protocol and why it is exclusive. Clients in other languages follow the same protocol, so they exclude one another.
//
// Each acquisition has a fencing token, greater than that of every earlier one of the same lock. A process may be paused
// between its check and its write, so a system that a lock protects must reject a token smaller than one it has accepted.
//
// Differences from etcd: waiters aren't served in the order of their arrival. A second Lock by a session that holds the lock
// waits, even on the same Mutex. Instead of IsOwner, which is part of a transaction of etcd, there are Held and Token.
package concurrency
