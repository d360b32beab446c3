package lease

import (
	"context"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
	"github.com/lessor-dev/lessor/clients/go/generated/clientset/scheme"
)

const (
	// watchLinger is how long the watch goes on without subscribers, so that one lease after another doesn't start it anew.
	watchLinger = 5 * time.Second
	// minWatchPause and maxWatchPause are the shortest and the longest pause after a watch has failed.
	minWatchPause = 500 * time.Millisecond
	maxWatchPause = 30 * time.Second
)

// watch is the one watch that all leases of a client share. It runs while there are subscribers.
//
// Its errors aren't reported: without it, renewals notice the same later.
type watch struct {
	client *Client

	mu          sync.Mutex
	subscribers map[string]map[*subscription]struct{}
	// leases are the leases of the client as last seen, and latest is the last version of any of them; nil and 0 before a list.
	leases map[string]*version
	latest uint64
	stop   context.CancelFunc
	linger *time.Timer
}

// subscription receives the newest version of one lease. Versions that aren't fetched are replaced by newer ones.
type subscription struct {
	watch *watch
	name  string
	// changed has an element when there is a version to fetch.
	changed chan struct{}

	mu      sync.Mutex
	version *version
}

// version is a lease as last seen by the watch.
type version struct {
	// lease is the object, or nil if a list doesn't have it.
	lease *v1alpha1.Lease
	// gone is whether the lease was deleted, or has lost the client's label.
	gone bool
	// resourceVersion is that of the object or the list.
	resourceVersion uint64
}

func newWatch(client *Client) *watch {
	return &watch{client: client, subscribers: map[string]map[*subscription]struct{}{}}
}

// subscribe returns a subscription to the lease of this name, which the caller has to close. It begins with what was seen last.
func (w *watch) subscribe(name string) *subscription {
	s := &subscription{watch: w, name: name, changed: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.subscribers[name] == nil {
		w.subscribers[name] = map[*subscription]struct{}{}
	}
	w.subscribers[name][s] = struct{}{}
	if seen := w.leases[name]; seen != nil {
		s.put(seen)
	} else if w.leases != nil {
		s.put(&version{resourceVersion: w.latest})
	}
	if w.linger != nil {
		w.linger.Stop()
		w.linger = nil
	}
	if w.stop == nil {
		var ctx context.Context
		ctx, w.stop = context.WithCancel(context.Background())
		go w.run(ctx)
	}
	return s
}

func (s *subscription) close() {
	w := s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.subscribers[s.name], s)
	if len(w.subscribers[s.name]) == 0 {
		delete(w.subscribers, s.name)
	}
	if len(w.subscribers) == 0 && w.stop != nil && w.linger == nil {
		w.linger = time.AfterFunc(watchLinger, w.stopIfUnused)
	}
}

func (w *watch) stopIfUnused() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.subscribers) == 0 && w.stop != nil {
		w.stop()
		w.stop, w.linger, w.leases, w.latest = nil, nil, nil, 0
	}
}

// fetch returns the newest version since the last call, if there is one.
func (s *subscription) fetch() *version {
	s.mu.Lock()
	defer s.mu.Unlock()
	fetched := s.version
	s.version = nil
	return fetched
}

// run lists and watches until it is stopped. After a failure it begins anew, with growing pauses.
func (w *watch) run(ctx context.Context) {
	for pause := minWatchPause; ctx.Err() == nil; pause = min(2*pause, maxWatchPause) {
		begin := time.Now()
		w.listAndWatch(ctx)
		if time.Since(begin) > maxWatchPause {
			pause = minWatchPause
		}
		_ = sleep(ctx, jittered(pause, 0.5, 1))
	}
}

// listAndWatch returns when a list or a watch fails.
func (w *watch) listAndWatch(ctx context.Context) {
	resourceVersion, err := w.list(ctx)
	for err == nil && ctx.Err() == nil {
		begin := time.Now()
		resourceVersion, err = w.watchFrom(ctx, resourceVersion)
		if time.Since(begin) < time.Second {
			return
		}
	}
}

func (w *watch) request(options *metav1.ListOptions) *rest.Request {
	options.LabelSelector = clientLabel + "=" + w.client.id
	return w.client.prepare(w.client.shared.Get().VersionedParams(options, scheme.ParameterCodec))
}

// list forwards what is there, as far as the API server's cache is. It returns the version of the list.
func (w *watch) list(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, w.client.timeout)
	defer cancel()
	list := &v1alpha1.LeaseList{}
	if err := w.request(&metav1.ListOptions{ResourceVersion: "0"}).Do(ctx).Into(list); err != nil {
		return "", err
	}
	missing := &version{resourceVersion: parseVersion(list.ResourceVersion)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	w.leases = make(map[string]*version, len(list.Items))
	for i := range list.Items {
		w.see(&list.Items[i], false)
	}
	w.latest = missing.resourceVersion
	for name := range w.subscribers {
		if w.leases[name] == nil {
			w.publish(name, missing)
		}
	}
	return list.ResourceVersion, nil
}

// watchFrom forwards changes after a version, and returns the last version when the watch ends. It fails if that can't be continued.
func (w *watch) watchFrom(ctx context.Context, resourceVersion string) (string, error) {
	timeout := int64(jittered(10*time.Minute, 0.5, 1).Seconds())
	watcher, err := w.request(&metav1.ListOptions{
		Watch: true, ResourceVersion: resourceVersion, AllowWatchBookmarks: true, TimeoutSeconds: &timeout,
	}).Watch(ctx)
	if err != nil {
		return "", err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		lease, ok := event.Object.(*v1alpha1.Lease)
		if !ok {
			// An error, such as a version that is too old.
			return "", apierrors.FromObject(event.Object)
		}
		resourceVersion = lease.ResourceVersion
		if event.Type != apiwatch.Bookmark {
			w.forward(ctx, lease, event.Type == apiwatch.Deleted)
		}
	}
	return resourceVersion, nil
}

// forward takes in an event, unless the watch was stopped meanwhile.
func (w *watch) forward(ctx context.Context, lease *v1alpha1.Lease, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() == nil {
		w.see(lease, gone)
	}
}

// see remembers a version, and gives it to the subscribers of its lease. The caller has locked the watch.
func (w *watch) see(lease *v1alpha1.Lease, gone bool) {
	// The record of who wrote which field is as large as the rest, and isn't needed.
	lease.ManagedFields = nil
	seen := &version{lease: lease, gone: gone, resourceVersion: parseVersion(lease.ResourceVersion)}
	w.latest = seen.resourceVersion
	if gone {
		delete(w.leases, lease.Name)
	} else {
		w.leases[lease.Name] = seen
	}
	w.publish(lease.Name, seen)
}

// publish gives a version to the subscribers of a lease. The caller has locked the watch.
func (w *watch) publish(name string, seen *version) {
	for s := range w.subscribers[name] {
		s.put(seen)
	}
}

func (s *subscription) put(seen *version) {
	s.mu.Lock()
	s.version = seen
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// parseVersion parses a resourceVersion, which only increases.
func parseVersion(text string) uint64 {
	version, _ := strconv.ParseUint(text, 10, 64)
	return version
}
