package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lessor-dev/lessor/clients/go/concurrency"
)

func (c *cluster) session(t *testing.T, holder string) *concurrency.Session {
	t.Helper()
	session, err := concurrency.NewSession(c.client(t), concurrency.WithTTL(5), concurrency.WithHolder(holder))
	must(t, err)
	return session
}

func TestWorkersTakeTurnsAndTheirTokensGrow(t *testing.T) {
	c := connect(t)
	const workers, turns = 8, 5
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		inside int
		token  int64
	)
	for n := range workers {
		all.Go(func() {
			session := c.session(t, fmt.Sprint("worker-", n))
			defer session.Close()
			mutex := concurrency.NewMutex(session, "/go/turns/")
			for range turns {
				if err := mutex.Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inside++
				if inside != 1 || mutex.Token() <= token {
					t.Errorf("%d inside, token %d after %d", inside, mutex.Token(), token)
				}
				token = mutex.Token()
				mu.Unlock()
				time.Sleep(5 * time.Millisecond)
				mu.Lock()
				inside--
				mu.Unlock()
				if err := mutex.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestALockIsHandedOverAfterARelease(t *testing.T) {
	c := connect(t)
	first, second := c.session(t, "a"), c.session(t, "b")
	defer first.Close()
	defer second.Close()
	held, waiting := concurrency.NewMutex(first, "go-release"), concurrency.NewMutex(second, "go-release")
	must(t, held.Lock(t.Context()))
	if err := waiting.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Error(err)
	}
	released := make(chan time.Time, 1)
	time.AfterFunc(time.Second, func() {
		released <- time.Now()
		must(t, held.Unlock(t.Context()))
	})
	must(t, waiting.Lock(t.Context()))
	if waited := time.Since(<-released); waited > time.Second {
		t.Errorf("waited %v after the release", waited)
	}
	must(t, waiting.Unlock(t.Context()))
}

func TestTheLockOfAProcessThatDiedIsHandedOverWithinItsTTLAndASecond(t *testing.T) {
	c := connect(t)
	dead, waiting := c.session(t, "a"), c.session(t, "b")
	defer waiting.Close()
	lost := concurrency.NewMutex(dead, "go-crash")
	must(t, lost.Lock(t.Context()))
	token := lost.Token()
	dead.Orphan()
	begin := time.Now()
	mutex := concurrency.NewMutex(waiting, "go-crash")
	must(t, mutex.Lock(t.Context()))
	if waited := time.Since(begin); waited > 6*time.Second {
		t.Errorf("waited %v", waited)
	}
	if mutex.Token() <= token || lost.Held() {
		t.Error("the token doesn't grow")
	}
	must(t, mutex.Unlock(t.Context()))
}

func TestALeaderProclaimsAndOneWhoseObjectIsGoneLeadsNoMore(t *testing.T) {
	c := connect(t)
	first, second := c.session(t, "a"), c.session(t, "b")
	defer first.Close()
	defer second.Close()
	leading, next := concurrency.NewElection(first, "go-leader"), concurrency.NewElection(second, "go-leader")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	leaders := next.Observe(ctx)
	must(t, leading.Campaign(ctx, "one"))
	if leader := <-leaders; leader.Value != "one" || leader.Token != leading.Token() {
		t.Errorf("%+v", leader)
	}
	must(t, leading.Proclaim(ctx, "two"))
	if leader := <-leaders; leader.Value != "two" || leader.Token != leading.Token() || leader.Holder != "a" {
		t.Errorf("%+v", leader)
	}
	must(t, c.core.CoreV1().ConfigMaps(c.namespace).Delete(ctx, leading.Key(), metav1.DeleteOptions{}))
	must(t, next.Campaign(ctx, "three"))
	if err := leading.Proclaim(ctx, "four"); !errors.Is(err, concurrency.ErrElectionNotLeader) || leading.Held() {
		t.Error(err)
	}
	if leader, err := leading.Leader(ctx); err != nil || leader.Value != "three" {
		t.Error(leader, err)
	}
	must(t, next.Resign(ctx))
	if _, err := leading.Leader(ctx); !errors.Is(err, concurrency.ErrElectionNoLeader) {
		t.Error(err)
	}
}
