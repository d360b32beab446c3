package lease

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
	"github.com/lessor-dev/lessor/clients/go/generated/clientset/scheme"
	"github.com/lessor-dev/lessor/clients/go/internal/wire"
)

const (
	// DefaultFieldManager is the field manager of a client's writes.
	DefaultFieldManager = "lessor-client-go"
	// DefaultTimeout is the timeout of each request.
	DefaultTimeout = 10 * time.Second

	// clientLabel is on each lease that a client creates. It selects the leases of one client for its watch.
	clientLabel = "lessor.dev/client"
	resource    = "leases"
)

// Client sends requests for the leases of one namespace. Its leases share one watch, so a program needs one Client for each
// namespace. It may be used by several goroutines.
type Client struct {
	config    *rest.Config
	namespace string
	id        string
	manager   string
	timeout   time.Duration

	shared   rest.Interface
	fresh    rest.Interface
	metadata metadata.Interface
	watch    *watch
}

// Option changes a default of a Client.
type Option func(*Client)

// WithFieldManager sets the field manager of writes.
func WithFieldManager(name string) Option {
	return func(c *Client) { c.manager = name }
}

// WithTimeout sets the timeout of each request.
func WithTimeout(timeout time.Duration) Option {
	return func(c *Client) { c.timeout = timeout }
}

// NewClient returns a client for the leases of a namespace.
//
// The limit of config on the rate of requests (QPS, Burst, RateLimiter) doesn't apply, because it would delay renewals until it
// is too late. A Client limits itself: it renews at a third of the TTL, and pauses after failures.
func NewClient(config *rest.Config, namespace string, options ...Option) (*Client, error) {
	c := &Client{
		namespace: namespace,
		id:        randomID(),
		manager:   DefaultFieldManager,
		timeout:   DefaultTimeout,
	}
	for _, option := range options {
		option(c)
	}
	c.config = rest.CopyConfig(config)
	c.config.QPS, c.config.Burst, c.config.RateLimiter = -1, 0, nil
	// The timeout of a rest.Config would end watches too.
	c.config.Timeout = 0
	c.config.Wrap(wire.Wrap)

	var err error
	if c.shared, err = leasesFor(c.config); err != nil {
		return nil, err
	}
	// All requests of HTTP/2 share a connection, and one that hangs is noticed late. So after a failure, requests are sent by
	// HTTP/1.1, on a connection that a timeout closes.
	fresh := rest.CopyConfig(c.config)
	if fresh.Transport == nil {
		fresh.NextProtos = []string{"http/1.1"}
	}
	if c.fresh, err = leasesFor(fresh); err != nil {
		return nil, err
	}
	if c.metadata, err = metadata.NewForConfig(c.config); err != nil {
		return nil, err
	}
	c.watch = newWatch(c)
	return c, nil
}

func leasesFor(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion = &v1alpha1.SchemeGroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.RESTClientFor(config)
}

// Namespace returns the namespace.
func (c *Client) Namespace() string {
	return c.namespace
}

// FieldManager returns the field manager of writes.
func (c *Client) FieldManager() string {
	return c.manager
}

// Config returns a copy of the configuration by which this client sends requests.
func (c *Client) Config() *rest.Config {
	return rest.CopyConfig(c.config)
}

// Get reads a lease.
func (c *Client) Get(ctx context.Context, name string) (*v1alpha1.Lease, error) {
	answer, err := c.send(ctx, c.shared.Get().Name(name), c.timeout)
	if err != nil {
		return nil, err
	}
	return answer.lease, nil
}

// Revoke ends a lease now, even if it has another holder. Everything attached is deleted, and the lease last. It returns once
// the API server has accepted the deletion. With a uid, a later lease of the same name isn't revoked: the error is [ErrReplaced]
// then.
func (c *Client) Revoke(ctx context.Context, name string, uid types.UID) error {
	options := &metav1.DeleteOptions{}
	if uid != "" {
		options.Preconditions = metav1.NewUIDPreconditions(string(uid))
	}
	request := c.shared.Delete().Name(name).Body(options)
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err := c.prepare(request).Do(ctx).Error()
	// The uid is the only precondition.
	if uid != "" && apierrors.IsConflict(err) {
		return replaced(err)
	}
	return explain(err)
}

// WaitGone waits until a lease is gone. It is deleted after everything attached to it, so this waits for that too.
func (c *Client) WaitGone(ctx context.Context, name string) error {
	for {
		switch _, err := c.Get(ctx, name); {
		case isNotFound(err):
			return nil
		case err != nil && !IsTemporary(err):
			return err
		}
		if err := sleep(ctx, time.Second/2); err != nil {
			return err
		}
	}
}

func (c *Client) create(ctx context.Context, lease *v1alpha1.Lease) (*answer, error) {
	request := c.shared.Post().Param("fieldManager", c.manager).Body(lease)
	return c.send(ctx, request, c.timeout)
}

// patch sends a merge patch. With fresh, it doesn't use a connection that another request may have blocked.
func (c *Client) patch(ctx context.Context, name string, body []byte, timeout time.Duration, fresh bool) (*answer, error) {
	client := c.shared
	if fresh {
		client = c.fresh
	}
	request := client.Patch(types.MergePatchType).Name(name).Param("fieldManager", c.manager).Body(body)
	answer, err := c.send(ctx, request, timeout)
	// The API server accepts a patch that changes nothing even after the end.
	if err == nil && answer.lease.Ended() {
		return nil, &Error{kind: ErrEnded, message: v1alpha1.EndedMessage}
	}
	return answer, err
}

// answer is the response to one request for a lease.
type answer struct {
	lease *v1alpha1.Lease
	// sent is the instant before the request was sent.
	sent Instant
	// date is the API server's clock, rounded down to the second; zero if unknown.
	date time.Time
}

func (c *Client) prepare(request *rest.Request) *rest.Request {
	// The retries of client-go aren't aware of the lease's deadline.
	return request.Namespace(c.namespace).Resource(resource).MaxRetries(0)
}

// send sends a request once, without retries.
func (c *Client) send(ctx context.Context, request *rest.Request, timeout time.Duration) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, headers := wire.Record(ctx)
	answer := &answer{lease: &v1alpha1.Lease{}, sent: Now()}
	if err := c.prepare(request).Do(ctx).Into(answer.lease); err != nil {
		return nil, explain(headers.Explain(err))
	}
	answer.date = headers.Date
	return answer, nil
}

// randomID returns 32 hexadecimal digits that no other call returns.
func randomID() string {
	var id [16]byte
	// It never fails: see its documentation.
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("gave up waiting: %w", context.Cause(ctx))
	}
}
