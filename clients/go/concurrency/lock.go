package concurrency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lessor-dev/lessor/clients/go/internal/wire"
	"github.com/lessor-dev/lessor/clients/go/lease"
)

const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
	// maxStagger spreads the waiters after a release, so that few of them send a create that is refused.
	maxStagger = 100 * time.Millisecond
	// reread is how often a waiter reads the lock, whatever the watch shows.
	reread = 5 * time.Second
	// lateCreate is how long a create without an answer may take effect, as far as clients look for it.
	lateCreate = time.Minute
)

var (
	// errLocked means that another session holds the lock.
	errLocked = errors.New("locked")
	// errNotALock means that the ConfigMap serves another purpose.
	errNotALock = errors.New("not a lock")
	// errNoToken means that a version has no order.
	errNoToken = errors.New("resourceVersion is no number, so it can't be a fencing token")
)

// lock is what Mutex and Election have in common: the protocol of clients/MUTEX.md.
type lock struct {
	objects

	mu   sync.Mutex
	held *holding
}

// holding is a lock object that this process has created and not begun to delete.
type holding struct {
	acquisition string
	uid         types.UID
	token       int64
	// unanswered is whether a create got no answer, so that it may be done later.
	unanswered bool
}

func newLock(session *Session, name string) lock {
	return lock{objects: objects{session, name, objectName(name)}}
}

// acquire creates the lock object, or waits until it can. With try, it fails with errLocked instead of waiting.
func (l *lock) acquire(ctx context.Context, value string, try bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(l.session.Ctx(), func() { cancel(ErrSessionExpired) })
	defer stop()

	if wait := l.session.turns.pause(l.object, time.Now()); wait > 0 && !try {
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	a := &holding{acquisition: randomID()}
	err := l.obtain(ctx, a, value, try)
	// If the session is valid now, it has been since the creation, so its lease hasn't ended.
	if err == nil && !l.session.Alive() {
		err = ErrSessionExpired
	}
	if err != nil {
		l.cleanUp(a)
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = a
	l.session.turns.begin(l.object, time.Now())
	return nil
}

// obtain returns once the lock object is that of the acquisition.
func (l *lock) obtain(ctx context.Context, a *holding, value string, try bool) error {
	failures := 0
	failed := func(err error) error {
		if !passes(err) {
			return err
		}
		failures++
		return pause(ctx, err, failures)
	}
	// After a failure, and while another session holds the lock, it is read before another create.
	look := false
	for {
		if !l.session.Alive() {
			return ErrSessionExpired
		}
		if !look {
			created, err := l.create(ctx, a.acquisition, value)
			if err == nil {
				return a.is(created)
			}
			look = true
			if !apierrors.IsAlreadyExists(err) {
				a.unanswered = a.unanswered || passes(err) && !apierrors.IsTooManyRequests(err)
				if err := failed(l.describe("create", err)); err != nil {
					return err
				}
			}
		}
		state, found, err := l.examine(ctx, a)
		switch {
		case err != nil:
			if err := failed(err); err != nil {
				return err
			}
			continue
		case state == ours:
			return a.is(found)
		case state == held && try:
			return errLocked
		case state == held:
			deleted, err := l.waitDeleted(ctx, found.ResourceVersion)
			if err != nil {
				return err
			}
			look = !deleted
		default:
			look = false
		}
		failures = 0
	}
}

// is takes an object for that of the acquisition.
func (a *holding) is(object *corev1.ConfigMap) error {
	token, err := parseToken(object.ResourceVersion)
	if err != nil {
		return err
	}
	a.uid, a.token = object.UID, token
	return nil
}

// state is that of a lock object, as one acquisition sees it.
type state int

const (
	// absent means that the object doesn't exist, or that it was deleted because it held nothing any more.
	absent state = iota
	// ours means that this acquisition has created it.
	ours
	// held means that another acquisition holds the lock by it.
	held
)

// examine reads the lock object. An object that holds nothing any more is deleted.
func (l *lock) examine(ctx context.Context, a *holding) (state, *corev1.ConfigMap, error) {
	found, err := l.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return absent, nil, nil
	case err != nil:
		return absent, nil, l.describe("read", err)
	case found.Data[dataAcquisition] == a.acquisition:
		return ours, found, nil
	}
	switch dead, err := l.isDead(ctx, found); {
	case err != nil:
		return absent, nil, err
	case dead:
		return absent, nil, l.delete(ctx, found.UID, found.ResourceVersion)
	default:
		return held, found, nil
	}
}

// isDead reports whether no session can hold the lock by this object any more. That never changes.
func (l *lock) isDead(ctx context.Context, found *corev1.ConfigMap) (bool, error) {
	uid := found.Data[dataLeaseUID]
	if uid == "" {
		return false, fmt.Errorf("%w: configmaps/%s: delete it, or use another name", errNotALock, l.object)
	}
	if uid == string(l.session.Lease().UID()) && l.session.hasEnded(found.Data[dataAcquisition]) {
		return true, nil
	}
	owner, err := l.session.Client().Get(ctx, found.Data[dataLease])
	switch {
	case errors.Is(err, lease.ErrGone):
		return true, nil
	case err != nil:
		return false, err
	default:
		return string(owner.UID) != uid || owner.Ended(), nil
	}
}

// waitDeleted watches the lock object from a version on, and returns whether it was deleted. If not, it has to be read again.
func (l *lock) waitDeleted(ctx context.Context, resourceVersion string) (bool, error) {
	deadline := time.NewTimer(time.Duration(float64(reread) * (0.8 + 0.4*rand.Float64())))
	defer deadline.Stop()
	var events <-chan watch.Event
	if watcher, err := l.watch(ctx, resourceVersion); err == nil {
		defer watcher.Stop()
		events = watcher.ResultChan()
	}
	// Without a watch, the deadline comes first.
	var stagger <-chan time.Time
	for {
		select {
		case event, open := <-events:
			switch {
			case !open || event.Type == watch.Error:
				// So that a watch that always breaks at once isn't begun without pause.
				events = nil
				deadline.Reset(rand.N(time.Second))
			case event.Type == watch.Deleted:
				stagger = time.After(rand.N(maxStagger))
			default:
				stagger = nil
			}
		case <-stagger:
			return true, nil
		case <-deadline.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// release deletes the lock object. The lock isn't held from the beginning of the call on, whatever its result.
func (l *lock) release(ctx context.Context) (released bool, err error) {
	l.mu.Lock()
	a := l.held
	l.held = nil
	l.mu.Unlock()
	if a == nil {
		return false, nil
	}
	defer func() { l.session.turns.end(l.object, time.Now()) }()
	for failures := 1; ; failures++ {
		err := l.delete(ctx, a.uid, "")
		if err == nil {
			a.uid = ""
			l.cleanUp(a)
			return true, nil
		}
		if passes(err) {
			if pause(ctx, err, failures) == nil {
				continue
			}
		}
		l.cleanUp(a)
		return true, l.describe("delete", err)
	}
}

// holds returns the acquisition by which this process holds the lock now, or nil.
func (l *lock) holds() *holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil || !l.session.Alive() {
		return nil
	}
	return l.held
}

// forget drops an acquisition whose object is gone.
func (l *lock) forget(a *holding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == a {
		l.held = nil
	}
}

// cleanUp deletes, in the background, what an acquisition that is over may have left behind or may still create.
func (l *lock) cleanUp(a *holding) {
	if a.uid == "" && !a.unanswered {
		return
	}
	l.session.end(a.acquisition)
	ctx, cancel := context.WithTimeout(context.Background(), lateCreate)
	go func() {
		defer cancel()
		for {
			if a.uid != "" && l.delete(ctx, a.uid, "") == nil {
				a.uid = ""
			}
			if a.unanswered {
				found, err := l.get(ctx)
				if err == nil && found.Data[dataAcquisition] == a.acquisition {
					_ = l.delete(ctx, found.UID, "")
				}
			}
			if a.uid == "" && !a.unanswered || !l.session.Alive() {
				return
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return
			}
		}
	}()
}

func (l *lock) describe(verb string, err error) error {
	return fmt.Errorf("can't %s the lock object configmaps/%s: %w", verb, l.object, err)
}

// passes reports whether another attempt may succeed. An error that is neither the API server's nor one of this package's means that
// there was no answer.
func passes(err error) bool {
	if errors.Is(err, errNotALock) || errors.Is(err, errNoToken) {
		return false
	}
	var status apierrors.APIStatus
	return !errors.As(err, &status) || lease.IsTemporary(err)
}

// parseToken returns the fencing token that a resourceVersion is.
func parseToken(resourceVersion string) (int64, error) {
	token, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %q", errNoToken, resourceVersion)
	}
	return token, nil
}

// pause waits after a failure, longer each time.
func pause(ctx context.Context, err error, failures int) error {
	wait := time.Duration(float64(min(firstPause<<min(failures-1, 16), maxPause)) * (0.75 + 0.25*rand.Float64()))
	return sleep(ctx, max(wait, wire.RetryAfter(err)))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
