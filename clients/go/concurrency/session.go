package concurrency

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/lessor-dev/lessor/clients/go/lease"
)

// ErrSessionExpired means that the session is over, so that nothing can be acquired or held with it.
var ErrSessionExpired = errors.New("concurrency: session expired")

// defaultTTL is that of etcd, in seconds.
const defaultTTL = 60

// Session is a lease that is kept alive for as long as the process runs, and to which locks are attached.
type Session struct {
	*lease.Session
	holder     string
	configMaps rest.Interface
	turns      turnTaker

	mu sync.Mutex
	// ended are the acquisitions of this session that are over and may have left a lock object behind.
	ended map[string]struct{}
}

type sessionOptions struct {
	ctx    context.Context
	ttl    int
	lease  *lease.Lease
	holder string
}

// SessionOption changes a default of a session.
type SessionOption func(*sessionOptions)

// WithTTL sets the TTL of the session's lease in seconds. The default is 60.
func WithTTL(ttl int) SessionOption {
	return func(o *sessionOptions) { o.ttl = ttl }
}

// WithLease makes the session use a lease that was granted before. No other lease may ever have its name.
func WithLease(lease *lease.Lease) SessionOption {
	return func(o *sessionOptions) { o.lease = lease }
}

// WithContext sets the context of the grant.
func WithContext(ctx context.Context) SessionOption {
	return func(o *sessionOptions) { o.ctx = ctx }
}

// WithHolder sets who holds the session, for people. The default is the name of the machine, which in a pod is that of the pod.
func WithHolder(holder string) SessionOption {
	return func(o *sessionOptions) { o.holder = holder }
}

// NewSession grants the lease of a new session, and keeps it alive until the session is closed.
func NewSession(client *lease.Client, options ...SessionOption) (*Session, error) {
	o := sessionOptions{ctx: context.Background(), ttl: defaultTTL}
	for _, option := range options {
		option(&o)
	}
	if o.holder == "" {
		// Without a name of the machine there is none of the holder.
		o.holder, _ = os.Hostname()
	}
	config := client.Config()
	if config.Transport == nil {
		// Each request has a connection that its timeout closes, so that one that hangs blocks no other.
		config.NextProtos = []string{"http/1.1"}
	}
	core, err := corev1.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	s := &Session{
		holder: o.holder, configMaps: core.RESTClient(), ended: map[string]struct{}{},
		turns: turnTaker{turns: map[string]*turns{}},
	}
	if o.lease != nil {
		s.Session = lease.SessionOf(o.lease)
		return s, nil
	}
	ttl := time.Duration(o.ttl) * time.Second
	s.Session, err = lease.NewSession(o.ctx, client, ttl, lease.Holder(o.holder))
	return s, err
}

// end records that an object of this acquisition holds nothing any more.
func (s *Session) end(acquisition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[acquisition] = struct{}{}
}

func (s *Session) hasEnded(acquisition string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ended := s.ended[acquisition]
	return ended
}

// randomID returns 32 hexadecimal digits that no other call returns.
func randomID() string {
	var id [16]byte
	// It never fails: see its documentation.
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}
