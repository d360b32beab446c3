package lease

import (
	"time"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
)

// datePrecision is how far the API server's clock may be ahead of its header Date, which is rounded down to the second.
const datePrecision = time.Second

// validity is how long a holder may rely on its lease: pure arithmetic on one response of the API server.
//
// The operator counts the TTL from the instant at which the API server accepted a renewal, and the holder from the instant
// before it sent the renewal. So the holder's deadline is always the earlier one, whatever the network and the clocks do.
type validity struct {
	// ttl is how long the lease lives after a renewal.
	ttl time.Duration
	// since is the instant before the last renewal was sent.
	since Instant
	// deadline is until when the lease is alive at least.
	deadline Instant
	// capped is whether the deadline is the end of spec.maxLifetimeSeconds, which no renewal moves.
	capped bool

	requestedTTL int64
	// unobservedBelow is set after a change of spec.ttlSeconds: the primary hasn't observed it while status.specGeneration is
	// below this.
	unobservedBelow int64
}

// newValidity returns the validity after a grant, and whether the lease is granted.
func newValidity(answer *answer) (validity, bool) {
	return validity{requestedTTL: answer.lease.Spec.TTLSeconds}.renewed(answer)
}

// renewed returns the validity after another renewal, and whether the lease is granted.
func (v validity) renewed(answer *answer) (validity, bool) {
	lease := answer.lease
	if lease.OwnStatus().GrantedTTLSeconds == nil {
		return v, false
	}
	v.ttl = v.grantedTTL(lease)
	v.since = answer.sent
	v.deadline = answer.sent.Add(v.ttl)
	v.capped = false
	if left, ok := lifetimeLeft(answer); ok && left <= v.ttl {
		v.deadline = answer.sent.Add(left)
		v.capped = true
	}
	return v, true
}

// grantedTTL is the granted TTL. While the primary may not have observed a change of the requested TTL, it is the smaller of
// the two.
func (v *validity) grantedTTL(lease *v1alpha1.Lease) time.Duration {
	requested, granted := lease.Spec.TTLSeconds, *lease.Status.GrantedTTLSeconds
	if requested != v.requestedTTL {
		v.requestedTTL = requested
		v.unobservedBelow = lease.Generation
	}
	var observed int64
	if lease.Status.SpecGeneration != nil {
		observed = *lease.Status.SpecGeneration
	}
	if observed < v.unobservedBelow {
		return seconds(min(granted, requested))
	}
	v.unobservedBelow = 0
	return seconds(granted)
}

// lifetimeLeft is the shortest possible time from the request to the end of the lease's maximum lifetime, if it has one.
func lifetimeLeft(answer *answer) (time.Duration, bool) {
	lifetime, granted := answer.lease.Spec.MaxLifetimeSeconds, answer.lease.Status.GrantTime
	if lifetime == nil || granted == nil {
		return 0, false
	}
	now := answer.date
	if now.IsZero() {
		now = time.Now()
	}
	past := max(now.Add(datePrecision).Sub(granted.Time), 0)
	return max(seconds(*lifetime)-past, 0), true
}
