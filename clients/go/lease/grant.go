package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
)

// defaultWait is how long a grant may take.
const defaultWait = 15 * time.Second

// GrantOption changes a default of a grant.
type GrantOption func(*grant)

type grant struct {
	lease v1alpha1.Lease
	wait  time.Duration
}

// Holder is who renews the lease, for information.
func Holder(holder string) GrantOption {
	return func(g *grant) { g.lease.Spec.Holder = &holder }
}

// MaxLifetimeOf ends the lease at most this long after its grant, even if it is renewed.
func MaxLifetimeOf(lifetime time.Duration) GrantOption {
	n := wholeSeconds(lifetime)
	return func(g *grant) { g.lease.Spec.MaxLifetimeSeconds = &n }
}

// WarnBefore makes the condition Expiring True, and emits an Event, when at most this much remains.
func WarnBefore(remaining time.Duration) GrantOption {
	n := wholeSeconds(remaining)
	return func(g *grant) { g.lease.Spec.WarnBeforeSeconds = &n }
}

// Retain keeps the Lease object after it has expired, for inspection.
func Retain() GrantOption {
	return func(g *grant) { g.lease.Spec.AfterExpiry = v1alpha1.AfterExpiryRetain }
}

// Follow names a source that keeps the lease alive besides its holder. The operator must be configured to watch sources of this
// kind.
func Follow(source v1alpha1.RenewFrom) GrantOption {
	return func(g *grant) { g.lease.Spec.RenewFrom = &source }
}

// Labels adds labels to the lease.
func Labels(labels map[string]string) GrantOption {
	return func(g *grant) { maps.Copy(g.lease.Labels, labels) }
}

// Wait is how long to wait for the grant. The default is 15 seconds.
func Wait(wait time.Duration) GrantOption {
	return func(g *grant) { g.wait = wait }
}

// Grant grants a lease that lives for ttl after its last renewal: it creates the lease, and waits until the primary has granted
// it. The ttl is rounded up to whole seconds.
//
// The error is [ErrExists] if a lease of this name exists, even one that has ended and isn't released yet: see
// [Client.WaitGone]. It is [ErrNotGranted] if the primary doesn't grant it in time; the object exists then, and may be granted
// and expire later. After [ErrNoResponse] it may have been created or not.
func (c *Client) Grant(ctx context.Context, name string, ttl time.Duration, options ...GrantOption) (*Lease, error) {
	g := grant{wait: defaultWait}
	g.lease.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: map[string]string{}}
	g.lease.Spec.TTLSeconds = wholeSeconds(ttl)
	for _, option := range options {
		option(&g)
	}
	g.lease.Labels[clientLabel] = c.id

	answer, err := c.create(ctx, &g.lease)
	if err != nil {
		return nil, err
	}
	if answer.lease, err = c.waitGranted(ctx, answer.lease, g.wait); err != nil {
		return nil, err
	}
	lease, err := newLease(c, answer)
	if err != nil {
		return nil, err
	}
	// The TTL counts from before the creation, so after a slow grant little or nothing of it is left.
	if lease.Deadline().Sub(Now()) < lease.TTL()*2/3 {
		if err := lease.Renew(ctx); err != nil {
			return nil, err
		}
	}
	return lease, nil
}

// waitGranted waits until the primary has granted a lease. It sets the finalizer before that, so the end will be complete.
func (c *Client) waitGranted(ctx context.Context, created *v1alpha1.Lease, wait time.Duration) (*v1alpha1.Lease, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()
	events := c.watch.subscribe(created.Name)
	defer events.close()
	// Reads are for a user without the right to watch.
	pause := time.Second / 4
	reread := time.NewTimer(pause)
	defer reread.Stop()
	for {
		select {
		case <-events.changed:
			// A lease that isn't there yet, or not any more, is read.
			if seen := events.fetch(); seen != nil && seen.lease != nil && !seen.gone {
				if granted, err := isGranted(seen.lease, created); granted || err != nil {
					return seen.lease, err
				}
			}
			continue
		case <-reread.C:
			pause = min(2*pause, 2*time.Second)
			reread.Reset(pause)
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), errWaited) {
				return nil, fmt.Errorf("lease %q was created, and isn't granted yet: %w", created.Name, context.Cause(ctx))
			}
			return nil, &Error{ErrNotGranted, fmt.Sprintf("lease %q was created, but not granted within %v: check with "+
				"`kubectl lease status` that the operator is running and serves this namespace", created.Name, wait), nil}
		}
		lease, err := c.Get(ctx, created.Name)
		switch {
		case isNotFound(err):
			return nil, &Error{ErrEnded, v1alpha1.EndedMessage, err}
		case err == nil:
			if granted, err := isGranted(lease, created); granted || err != nil {
				return lease, err
			}
		case !IsTemporary(err):
			return nil, err
		}
	}
}

var errWaited = errors.New("waited long enough")

// isGranted reports whether the primary has granted the lease that was created.
func isGranted(lease, created *v1alpha1.Lease) (bool, error) {
	switch {
	case lease.UID != created.UID:
		return false, &Error{ErrReplaced, "the lease is gone, and another lease of this name exists", nil}
	case lease.Ended() || lease.DeletionTimestamp != nil:
		return false, &Error{ErrEnded, v1alpha1.EndedMessage, nil}
	}
	active := meta.FindStatusCondition(lease.OwnStatus().Conditions, v1alpha1.ConditionActive)
	return active != nil && slices.Contains([]string{v1alpha1.ReasonGranted, v1alpha1.ReasonSuspended}, active.Reason), nil
}
