package lease

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
)

// renewTimeFormat is RFC 3339 with microseconds.
const renewTimeFormat = "2006-01-02T15:04:05.000000Z07:00"

// Lease is a lease that this program was granted, with the deadline until which it may rely on it. It may be used by several
// goroutines.
//
// To drop it does nothing: the lease lives until its deadline. [Lease.KeepAlive] prolongs it, and [Lease.Revoke] ends it.
type Lease struct {
	client *Client
	name   string
	uid    types.UID

	mu       sync.Mutex
	object   *v1alpha1.Lease
	validity validity
	written  string
}

func newLease(client *Client, answer *answer) (*Lease, error) {
	validity, granted := newValidity(answer)
	if !granted {
		return nil, &Error{ErrNotGranted, "lease \"" + answer.lease.Name + "\" is not granted", nil}
	}
	return &Lease{
		client: client, name: answer.lease.Name, uid: answer.lease.UID, object: answer.lease, validity: validity,
	}, nil
}

// Renew renews the lease once. The errors [ErrEnded], [ErrGone] and [ErrReplaced] mean that it has ended. After any other error it
// is alive until its deadline, and another attempt may succeed.
func (l *Lease) Renew(ctx context.Context) error {
	return l.renew(ctx, l.client.timeout, false)
}

func (l *Lease) renew(ctx context.Context, timeout time.Duration, fresh bool) error {
	patch, err := l.renewal(time.Now())
	if err != nil {
		return err
	}
	answer, err := l.client.patch(ctx, l.name, patch, timeout, fresh)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	validity, granted := l.validity.renewed(answer)
	if !granted {
		// A lease that was granted, and isn't any more, has lost its status.
		return &Error{ErrEnded, v1alpha1.EndedMessage, nil}
	}
	// The answer to an earlier renewal may arrive later.
	if answer.sent >= l.validity.since {
		l.validity, l.object = validity, answer.lease
	}
	return nil
}

// renewal is the patch that renews the lease. With the uid, the API server rejects it for a later lease of the same name. Each one
// differs from those before, because an unchanged renewTime renews nothing.
func (l *Lease) renewal(now time.Time) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := now.UTC().Format(renewTimeFormat)
	for text == l.written || l.object.Spec.RenewTime != nil && text == *l.object.Spec.RenewTime {
		now = now.Add(time.Microsecond)
		text = now.UTC().Format(renewTimeFormat)
	}
	l.written = text
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": l.uid},
		"spec":     map[string]any{"renewTime": text},
	})
}

// Revoke ends the lease now, with everything attached to it. If it is gone already, that is no error.
func (l *Lease) Revoke(ctx context.Context) error {
	err := l.client.Revoke(ctx, l.name, l.uid)
	if errors.Is(err, ErrGone) || errors.Is(err, ErrReplaced) {
		return nil
	}
	return err
}

// Client returns the client that granted the lease.
func (l *Lease) Client() *Client {
	return l.client
}

// Name returns the name.
func (l *Lease) Name() string {
	return l.name
}

// UID returns the uid, which no other lease has.
func (l *Lease) UID() types.UID {
	return l.uid
}

// Object returns the object in the last response, which must not be changed.
func (l *Lease) Object() *v1alpha1.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.object
}

// TTL returns the granted TTL, which may differ from the requested one.
func (l *Lease) TTL() time.Duration {
	return l.state().ttl
}

// Deadline returns the instant until which the lease is alive at least. The deadline of the operator is later.
func (l *Lease) Deadline() Instant {
	return l.state().deadline
}

// Alive reports whether the deadline is in the future.
func (l *Lease) Alive() bool {
	return Now() < l.Deadline()
}

// FencingToken is greater than the token of every earlier lease of this name. A system that the lease protects rejects a token
// smaller than one it has accepted.
func (l *Lease) FencingToken() int64 {
	if token := l.Object().Status.FencingToken; token != nil {
		return *token
	}
	return 0
}

func (l *Lease) state() validity {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.validity
}
