package lease

import (
	"context"
	"time"
)

// Session is a lease that stands for a process: it has a name of its own, and is kept alive until the session is closed, orphaned
// or lost.
type Session struct {
	keepAlive *KeepAlive
	ctx       context.Context
	cancel    context.CancelFunc
}

// NewSession grants a lease under a name that no other lease ever has, and keeps it alive. The context bounds the grant only.
func NewSession(ctx context.Context, client *Client, ttl time.Duration, options ...GrantOption) (*Session, error) {
	lease, err := client.Grant(ctx, "session-"+randomID(), ttl, options...)
	if err != nil {
		return nil, err
	}
	return SessionOf(lease), nil
}

// SessionOf makes a session of a lease, which must have a name that no other lease ever has, and keeps it alive.
func SessionOf(lease *Lease) *Session {
	keepAlive := lease.KeepAlive()
	ctx, cancel := keepAlive.Context(context.Background())
	return &Session{keepAlive, ctx, cancel}
}

// Client returns the client that granted the lease of the session.
func (s *Session) Client() *Client {
	return s.keepAlive.lease.client
}

// Lease returns the lease of the session.
func (s *Session) Lease() *Lease {
	return s.keepAlive.lease
}

// Ctx returns a context that is cancelled when the session is lost, closed or orphaned.
func (s *Session) Ctx() context.Context {
	return s.ctx
}

// Done is closed when the session is lost, closed or orphaned. It is closed before the server can end the lease by time.
func (s *Session) Done() <-chan struct{} {
	return s.keepAlive.Done()
}

// Err returns why the session is over, and nil before.
func (s *Session) Err() error {
	return s.keepAlive.Err()
}

// Alive reports whether the session is certainly alive. It reads the clock, so it is right even in a process that was paused.
func (s *Session) Alive() bool {
	return s.keepAlive.Alive()
}

// Until returns the instant at which the session counts as lost without another renewal.
func (s *Session) Until() Instant {
	return s.keepAlive.Until()
}

// Orphan ends the renewals. The lease lives until its deadline.
func (s *Session) Orphan() {
	s.keepAlive.Stop()
	s.cancel()
}

// Close ends the session and revokes its lease, so that everything attached to it is deleted now.
func (s *Session) Close() error {
	s.Orphan()
	ctx, cancel := context.WithTimeout(context.Background(), s.Lease().TTL())
	defer cancel()
	return s.Lease().Revoke(ctx)
}
