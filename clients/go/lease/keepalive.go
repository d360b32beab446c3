package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
	"github.com/lessor-dev/lessor/clients/go/internal/wire"
)

const (
	// firstDelay is the delay after the first failed renewal. It doubles with each further one.
	firstDelay = 100 * time.Millisecond
	// maxDelay is the longest delay after a failed renewal.
	maxDelay = 5 * time.Second
	// minTimeout is the shortest timeout of a renewal, and the shortest delay between two.
	minTimeout = 50 * time.Millisecond
	// maxDefaultMargin is the largest default margin.
	maxDefaultMargin = time.Second
)

// ErrStopped is the error of a [KeepAlive] after Stop.
var ErrStopped = errors.New("the renewals were stopped")

// Event is a renewal, or a failed attempt at one.
type Event struct {
	// Renewals is the number of renewals so far.
	Renewals int
	// Err is why an attempt failed; nil after a renewal. The lease is alive, and another attempt follows.
	Err error
	// Next is the time until the next attempt.
	Next time.Duration
}

// KeepAliveOption changes a default of a KeepAlive.
type KeepAliveOption func(*KeepAlive)

// Margin is how long before the deadline a lease that can't be renewed counts as lost: the time that the holder needs to stop the
// work that the lease protects. The default is a tenth of the TTL, and at most one second.
func Margin(margin time.Duration) KeepAliveOption {
	return func(k *KeepAlive) { k.margin = &margin }
}

// Notify calls a function after each renewal and each failed attempt. The function must not block: no renewal is sent while it runs.
func Notify(notify func(Event)) KeepAliveOption {
	return func(k *KeepAlive) { k.notify = notify }
}

// KeepAlive renews a lease in the background, until it is lost or Stop is called.
//
// It renews after a third of the TTL, with jitter, and repeats failed renewals as long as the lease is alive. Done is closed before
// the deadline if the lease couldn't be renewed, and at once if it was revoked. If the process is paused meanwhile, the channel is
// closed as soon as it runs again; [KeepAlive.Alive] reads the clock itself, and is right even then.
type KeepAlive struct {
	lease  *Lease
	margin *time.Duration
	notify func(Event)

	done   chan struct{}
	cancel context.CancelFunc
	ended  chan struct{}

	mu  sync.Mutex
	err error
}

// KeepAlive keeps the lease alive from now on.
func (l *Lease) KeepAlive(options ...KeepAliveOption) *KeepAlive {
	ctx, cancel := context.WithCancel(context.Background())
	k := &KeepAlive{
		lease: l, notify: func(Event) {}, done: make(chan struct{}), ended: make(chan struct{}), cancel: cancel,
	}
	for _, option := range options {
		option(k)
	}
	go k.run(ctx)
	return k
}

// Done is closed when the lease is lost or the renewals are stopped. Err returns which.
func (k *KeepAlive) Done() <-chan struct{} {
	return k.done
}

// Err returns a [*LostError] after the loss of the lease, and [ErrStopped] after Stop. Before that it returns nil.
func (k *KeepAlive) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// Alive reports whether the lease is certainly alive. Call it directly before an action that requires the lease, and let the
// system that performs the action compare the fencing token as well.
func (k *KeepAlive) Alive() bool {
	return k.Err() == nil && Now() < k.Until()
}

// Until returns the instant at which the lease counts as lost without another renewal: its deadline less the margin.
func (k *KeepAlive) Until() Instant {
	validity := k.lease.state()
	if k.margin != nil {
		return validity.deadline.Add(-*k.margin)
	}
	return validity.deadline.Add(-min(validity.ttl/10, maxDefaultMargin))
}

// Lease returns the lease.
func (k *KeepAlive) Lease() *Lease {
	return k.lease
}

// Context returns a context that is cancelled when the lease is lost or the renewals are stopped, with Err as its cause.
func (k *KeepAlive) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		select {
		case <-k.done:
			cancel(k.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// Stop stops the renewals, and returns the lease, for example to revoke it. It returns once the background task has ended.
func (k *KeepAlive) Stop() *Lease {
	k.finish(ErrStopped)
	<-k.ended
	return k.lease
}

// finish closes Done. Only the first call has an effect.
func (k *KeepAlive) finish(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = err
		close(k.done)
		k.cancel()
	}
}

// renewer is the background task. Only its goroutine uses it.
type renewer struct {
	*KeepAlive
	renewals int
	// failures is the number of failures since the last renewal, and failure the last one.
	failures int
	failure  error
	// changedMeanwhile is whether the lease was changed during a renewal.
	changedMeanwhile bool
}

func (k *KeepAlive) run(ctx context.Context) {
	defer close(k.ended)
	r := &renewer{KeepAlive: k}
	events := k.lease.client.watch.subscribe(k.lease.name)
	defer events.close()
	if lost := r.renewUntilLost(ctx, events); lost != nil {
		k.finish(lost)
	}
}

// renewUntilLost returns nil if it is stopped.
func (r *renewer) renewUntilLost(ctx context.Context, events *subscription) *LostError {
	// A credential plugin may hang and ignore the context, so a renewal has a goroutine of its own. There is one at a time.
	answers := make(chan error, 1)
	inFlight := false
	next := r.nextRenewal()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := Now()
		lostAt := r.Until()
		if now >= lostAt {
			return r.notRenewed()
		}
		if !inFlight && now >= next {
			inFlight = true
			timeout := min(max(lostAt.Sub(now)/2, minTimeout), r.lease.client.timeout)
			fresh := errors.Is(r.failure, ErrNoResponse)
			go func() { answers <- r.lease.renew(ctx, timeout, fresh) }()
		}
		wake := lostAt
		if !inFlight {
			wake = min(wake, next)
		}
		timer.Reset(min(wake.Sub(now), readInterval))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-events.changed:
			switch finding, lost := r.examine(events.fetch()); {
			case lost != nil:
				return lost
			case finding == changed && inFlight:
				// The API server may have accepted the renewal in flight before the change, so renew again.
				r.changedMeanwhile = true
			case finding == changed:
				next = now
			}
		case err := <-answers:
			inFlight = false
			if lost := lossOf(err); lost != nil {
				return lost
			}
			next = r.answered(err)
		}
	}
}

type finding bool

const (
	unchanged finding = false
	// changed means that the terms of the lease have changed, or that it may be gone. A renewal finds out.
	changed finding = true
)

// examine returns what a watched version of the lease means to its holder.
func (r *renewer) examine(seen *version) (finding, *LostError) {
	ours := r.lease.Object()
	// The watch may lag behind this task's renewals.
	if seen == nil || seen.resourceVersion <= parseVersion(ours.ResourceVersion) {
		return unchanged, nil
	}
	switch {
	case seen.lease == nil:
		return changed, nil
	case seen.lease.UID != r.lease.uid:
		return unchanged, &LostError{Reason: Replaced}
	case seen.lease.Ended():
		return unchanged, &LostError{Reason: Ended}
	case seen.lease.DeletionTimestamp != nil:
		return unchanged, &LostError{Reason: Revoked}
	case seen.gone || termsOf(seen.lease) != termsOf(ours):
		return changed, nil
	default:
		return unchanged, nil
	}
}

// answered takes in the result of a renewal, and returns when to renew next.
func (r *renewer) answered(err error) Instant {
	now := Now()
	if err != nil {
		r.failures++
		r.failure = err
		wait := delay(err, r.failures, r.lease.TTL(), r.Until().Sub(now))
		r.notify(Event{Renewals: r.renewals, Err: err, Next: wait})
		return now.Add(wait)
	}
	r.renewals++
	r.failures, r.failure = 0, nil
	next := r.nextRenewal()
	if r.changedMeanwhile {
		r.changedMeanwhile = false
		next = now
	}
	r.notify(Event{Renewals: r.renewals, Next: next.Sub(now)})
	return next
}

func (r *renewer) notRenewed() *LostError {
	if r.lease.state().capped {
		return &LostError{MaxLifetime, r.failure}
	}
	return &LostError{NotRenewed, r.failure}
}

// nextRenewal is a third of the TTL after the last renewal, with jitter, so that holders that start together don't renew together.
func (r *renewer) nextRenewal() Instant {
	validity := r.lease.state()
	return validity.since.Add(jittered(validity.ttl/3, 0.9, 1.1))
}

// delay is the delay after a failure: at most half of the remaining time, so that at least one more attempt fits.
func delay(err error, failures int, ttl, remaining time.Duration) time.Duration {
	doubled := min(firstDelay<<min(failures-1, 16), ttl/10, maxDelay)
	wait := max(jittered(doubled, 0.75, 1), wire.RetryAfter(err))
	return max(min(wait, remaining/2), minTimeout)
}

// jittered is a random duration between low and high times d.
func jittered(d time.Duration, low, high float64) time.Duration {
	return time.Duration(float64(d) * (low + (high-low)*rand.Float64()))
}

// terms are the fields that determine when a lease ends, except renewals.
type terms struct {
	ttl, maxLifetime, granted int64
}

func termsOf(lease *v1alpha1.Lease) terms {
	value := func(n *int64) int64 {
		if n == nil {
			return 0
		}
		return *n
	}
	return terms{lease.Spec.TTLSeconds, value(lease.Spec.MaxLifetimeSeconds), value(lease.Status.GrantedTTLSeconds)}
}
