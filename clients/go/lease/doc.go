// Package lease grants leases of lessor.dev, keeps them alive, and attaches objects to them that are deleted when they end.
//
// A [Lease] and its [KeepAlive] never count a lease as alive after it has expired on the server. They count the TTL from the
// instant before a request was sent, on a clock that includes the time in which the machine is suspended, and use the granted
// TTL rather than the requested one. No wall clock is involved, except that maxLifetimeSeconds is measured by the API server's
// clock.
//
// A revocation is different: a user may end a lease at any time. KeepAlive watches the lease, and reports a revocation as soon
// as the watch delivers it. All leases of a [Client] share one watch.
//
// A lease alone is not a mutex. A process may be paused between its check of the lease and its write. A system that a lease
// protects should compare [Lease.FencingToken] and reject a token smaller than one it has accepted. Package concurrency has
// locks on top of leases.
package lease
