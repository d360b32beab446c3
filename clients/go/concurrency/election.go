package concurrency

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

var (
	// ErrElectionNotLeader means that this Election doesn't lead.
	ErrElectionNotLeader = errors.New("election: not leader")
	// ErrElectionNoLeader means that there is no leader.
	ErrElectionNoLeader = errors.New("election: no leader")
)

// Election elects at most one session, which publishes a value.
type Election struct {
	lock
}

// Leader is who leads, as observers see it.
type Leader struct {
	// Value is the leader's value.
	Value string
	// Holder is who holds the leader's session, for information.
	Holder string
	// Token is the leader's fencing token.
	Token int64
}

// NewElection returns the election of this name. An Election and a Mutex of one name exclude one another.
func NewElection(session *Session, name string) *Election {
	return &Election{newLock(session, name)}
}

// Campaign puts up a value, and waits until this session is elected. The wait ends with an error when ctx is done or the session is
// over.
func (e *Election) Campaign(ctx context.Context, value string) error {
	if e.Held() {
		return e.Proclaim(ctx, value)
	}
	return e.acquire(ctx, value, false)
}

// Proclaim changes the leader's value. The token stays the same.
func (e *Election) Proclaim(ctx context.Context, value string) error {
	a := e.holds()
	if a == nil {
		return ErrElectionNotLeader
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": a.uid},
		"data":     map[string]string{dataValue: value, dataToken: strconv.FormatInt(a.token, 10)},
	})
	if err != nil {
		return err
	}
	for failures := 1; ; failures++ {
		err := e.patch(ctx, body)
		switch {
		case err == nil:
			return nil
		case apierrors.IsNotFound(err) || isOther(err):
			e.forget(a)
			return ErrElectionNotLeader
		case !passes(err):
			return e.describe("patch", err)
		}
		if e.holds() != a {
			return ErrElectionNotLeader
		}
		if err := pause(ctx, err, failures); err != nil {
			return err
		}
	}
}

// isOther reports whether the API server refused a patch because the object has another uid.
func isOther(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == "metadata.uid"
	})
}

// Resign ends the leadership, if there is one.
func (e *Election) Resign(ctx context.Context) error {
	_, err := e.release(ctx)
	return err
}

// Leader returns who leads now. If there is no leader, the error is ErrElectionNoLeader.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	found, err := e.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return Leader{}, ErrElectionNoLeader
	case err != nil:
		return Leader{}, e.describe("read", err)
	}
	dead, err := e.isDead(ctx, found)
	switch {
	case err != nil:
		return Leader{}, err
	case dead:
		return Leader{}, ErrElectionNoLeader
	}
	return leaderOf(found)
}

func leaderOf(object *corev1.ConfigMap) (Leader, error) {
	text, proclaimed := object.Data[dataToken]
	if !proclaimed {
		text = object.ResourceVersion
	}
	token, err := parseToken(text)
	return Leader{object.Data[dataValue], object.Data[dataHolder], token}, err
}

// Observe returns a channel with the present leader, each later one, and each change of the value. Changes in quick succession may be
// combined. The channel is closed when ctx is done.
func (e *Election) Observe(ctx context.Context) <-chan Leader {
	leaders := make(chan Leader)
	go func() {
		defer close(leaders)
		var last Leader
		for failures := 1; ; failures++ {
			err := e.observe(ctx, func(object *corev1.ConfigMap) error {
				leader, err := leaderOf(object)
				if err != nil || leader == last {
					return err
				}
				failures, last = 1, leader
				select {
				case leaders <- leader:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if pause(ctx, err, failures) != nil {
				return
			}
		}
	}()
	return leaders
}

// observe calls report with each version of the lock object, until the watch breaks.
func (e *Election) observe(ctx context.Context, report func(*corev1.ConfigMap) error) error {
	// A watch from no version begins with the object as it is now.
	watcher, err := e.watch(ctx, "")
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for {
		select {
		case event, open := <-watcher.ResultChan():
			if !open || event.Type == watch.Error {
				return nil
			}
			object, ok := event.Object.(*corev1.ConfigMap)
			if !ok || event.Type == watch.Deleted || event.Type == watch.Bookmark {
				continue
			}
			if err := report(object); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Held reports whether this Election certainly leads now: see [Mutex.Held].
func (e *Election) Held() bool {
	return e.holds() != nil
}

// Token returns the fencing token of the leadership: see [Mutex.Token].
func (e *Election) Token() int64 {
	if a := e.holds(); a != nil {
		return a.token
	}
	return 0
}

// Rev is the name that etcd has for the Token.
func (e *Election) Rev() int64 {
	return e.Token()
}

// Key returns the name of the lock object, a ConfigMap.
func (e *Election) Key() string {
	return e.object
}
