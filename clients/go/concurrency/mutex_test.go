package concurrency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lessor-dev/lessor/clients/go/internal/clock"
	"github.com/lessor-dev/lessor/clients/go/internal/fakeapi"
	"github.com/lessor-dev/lessor/clients/go/lease"
)

func init() {
	clock.Now = func() int64 { return time.Now().UnixNano() }
}

// virtual runs a test in virtual time, with a server in memory.
func virtual(t *testing.T, test func(t *testing.T, server *fakeapi.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// What goes on in the background ends after its last user.
		t.Cleanup(func() { time.Sleep(2 * lateCreate) })
		test(t, fakeapi.New())
	})
}

func session(t *testing.T, server *fakeapi.Server, holder string) *Session {
	t.Helper()
	client, err := lease.NewClient(server.Config(), fakeapi.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	session, err := NewSession(client, WithTTL(10), WithHolder(holder))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Orphan)
	return session
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNamesOfLockObjectsAreThoseOfTheProtocol(t *testing.T) {
	for name, object := range map[string]string{
		"reports":                "lock.reports",
		"a.b-c":                  "lock.a.b-c",
		"/jobs/reports/":         "lock-sha256.5c755bf3e2f65394f05d8872e9aef2ab038c7bfe97f788ce18aacb1dd3cce64a",
		"":                       "lock-sha256.e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"a..b":                   "lock-sha256.",
		"Upper":                  "lock-sha256.",
		strings.Repeat("a", 248): "lock." + strings.Repeat("a", 248),
		strings.Repeat("a", 249): "lock-sha256.",
	} {
		got := objectName(name)
		if object == "lock-sha256." && len(got) == len(object)+64 && strings.HasPrefix(got, object) {
			continue
		}
		if got != object {
			t.Errorf("%q: %q", name, got)
		}
	}
}

func TestALockedMutexIsRefusedAndHandedOverWithinASecondAfterItsRelease(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		first, second := NewMutex(session(t, server, "a"), "m"), NewMutex(session(t, server, "b"), "m")
		must(t, first.Lock(t.Context()))
		token := first.Token()
		if err := second.TryLock(t.Context()); !errors.Is(err, ErrLocked) {
			t.Error(err)
		}
		go func() {
			time.Sleep(20 * time.Second)
			_ = first.Unlock(t.Context())
		}()
		begin := time.Now()
		must(t, second.Lock(t.Context()))
		if waited := time.Since(begin); waited < 20*time.Second || waited > 21*time.Second {
			t.Errorf("waited %v", waited)
		}
		if first.Held() || !second.Held() || second.Token() <= token {
			t.Errorf("tokens %d, %d", token, second.Token())
		}
		if err := first.Unlock(t.Context()); !errors.Is(err, ErrLockReleased) {
			t.Error(err)
		}
		must(t, second.Unlock(t.Context()))
	})
}

func TestTheLockOfAProcessThatDiedIsHandedOverWhenItsLeaseEnds(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		dead := session(t, server, "a")
		must(t, NewMutex(dead, "m").Lock(t.Context()))
		dead.Orphan()
		waiter := NewMutex(session(t, server, "b"), "m")
		begin := time.Now()
		must(t, waiter.Lock(t.Context()))
		if waited := time.Since(begin); waited > 11*time.Second {
			t.Errorf("waited %v", waited)
		}
		must(t, waiter.Unlock(t.Context()))
	})
}

func TestALockWhoseLeaseIsGoneIsBroken(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		dead := session(t, server, "a")
		must(t, NewMutex(dead, "m").Lock(t.Context()))
		// The operator deletes what is attached when the lease ends. What a user has detached is left.
		server.Change("configmaps/lock.m", map[string]any{"metadata": map[string]any{"annotations": nil}})
		dead.Orphan()
		waiter := NewMutex(session(t, server, "b"), "m")
		must(t, waiter.Lock(t.Context()))
		must(t, waiter.Unlock(t.Context()))
	})
}

func TestAConfigMapThatIsNoLockIsLeftAlone(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		first := NewMutex(session(t, server, "a"), "m")
		must(t, first.Lock(t.Context()))
		server.Change("configmaps/lock.m", map[string]any{"data": nil})
		err := NewMutex(session(t, server, "b"), "m").Lock(t.Context())
		if !errors.Is(err, errNotALock) || !server.Exists("configmaps/lock.m") {
			t.Error(err)
		}
		must(t, first.Unlock(t.Context()))
	})
}

func TestAWaitEndsWithItsContextAndWithItsSession(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		first := NewMutex(session(t, server, "a"), "m")
		must(t, first.Lock(t.Context()))
		waiting := session(t, server, "b")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := NewMutex(waiting, "m").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.AfterFunc(time.Second, func() { _ = waiting.Close() })
		if err := NewMutex(waiting, "m").Lock(t.Context()); !errors.Is(err, ErrSessionExpired) {
			t.Error(err)
		}
		if err := NewMutex(waiting, "other").Lock(t.Context()); !errors.Is(err, ErrSessionExpired) {
			t.Error(err)
		}
		must(t, first.Unlock(t.Context()))
	})
}

func TestACreateThatIsDoneAfterItsCallerGaveUpBlocksTheLockForASecond(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		first, second := session(t, server, "a"), session(t, server, "b")
		server.SetFault(func(request *http.Request) (time.Duration, *http.Response, error) {
			if request.Method == http.MethodPost {
				return 5500 * time.Millisecond, nil, nil
			}
			return 0, nil, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := NewMutex(first, "m").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		server.SetFault(nil)
		time.Sleep(4510 * time.Millisecond)
		if !server.Exists("configmaps/lock.m") {
			t.Fatal("the create wasn't done")
		}
		begin := time.Now()
		mutex := NewMutex(second, "m")
		must(t, mutex.Lock(t.Context()))
		if waited := time.Since(begin); waited > 1200*time.Millisecond {
			t.Errorf("waited %v", waited)
		}
		must(t, mutex.Unlock(t.Context()))
	})
}

func TestALostAnswerToACreateIsNoLostLock(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		holder := session(t, server, "a")
		var lost atomic.Bool
		server.SetFault(func(request *http.Request) (time.Duration, *http.Response, error) {
			if request.Method == http.MethodPost && !lost.Swap(true) {
				return 11 * time.Second, nil, nil
			}
			return 0, nil, nil
		})
		mutex := NewMutex(holder, "m")
		must(t, mutex.Lock(t.Context()))
		if !mutex.Held() {
			t.Error("not held")
		}
		must(t, mutex.Unlock(t.Context()))
	})
}

func TestNoTwoSessionsHoldALockWhateverFails(t *testing.T) {
	for range 4 {
		virtual(t, func(t *testing.T, server *fakeapi.Server) {
			server.SetFault(func(request *http.Request) (time.Duration, *http.Response, error) {
				if request.URL.Query().Get("watch") == "" && rand.Float64() < 0.2 {
					switch rand.N(3) {
					case 0:
						return 0, nil, errors.New("connection reset")
					case 1:
						return 0, fakeapi.Status(503, "ServiceUnavailable", "", "later", ""), nil
					default:
						return rand.N(20 * time.Second), nil, nil
					}
				}
				return 0, nil, nil
			})
			register := &register{}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			var workers sync.WaitGroup
			for n := range 5 {
				workers.Go(func() { work(ctx, t, server, fmt.Sprint("worker-", n), register) })
			}
			workers.Wait()
			server.SetFault(nil)
			if register.writes < 20 {
				t.Errorf("only %d writes", register.writes)
			}
		})
	}
}

// register is what the lock protects. It has no check of its own, apart from that of the test.
type register struct {
	mu     sync.Mutex
	writes int
	token  int64
}

// work locks, writes and unlocks again and again, and now and then dies or goes on with a new session.
func work(ctx context.Context, t *testing.T, server *fakeapi.Server, name string, register *register) {
	for ctx.Err() == nil {
		client, err := lease.NewClient(server.Config(), fakeapi.Namespace)
		if err != nil {
			t.Error(err)
			return
		}
		session, err := NewSession(client, WithTTL(10), WithContext(ctx), WithHolder(name))
		if err != nil {
			time.Sleep(time.Second)
			continue
		}
		mutex := NewMutex(session, "m")
		for ctx.Err() == nil && mutex.Lock(ctx) == nil {
			for range rand.N(20) {
				register.check(t, mutex)
				time.Sleep(rand.N(200 * time.Millisecond))
				register.check(t, mutex)
			}
			if rand.Float64() < 0.1 {
				break
			}
			short, cancel := context.WithTimeout(ctx, 5*time.Second)
			_ = mutex.Unlock(short)
			cancel()
		}
		if rand.Float64() < 0.5 {
			session.Orphan()
		} else {
			_ = session.Close()
		}
	}
}

func (r *register) check(t *testing.T, mutex *Mutex) {
	r.mu.Lock()
	defer r.mu.Unlock()
	token := mutex.Token()
	if token == 0 {
		return
	}
	if token < r.token {
		t.Errorf("token %d after %d", token, r.token)
	}
	r.token = token
	r.writes++
}

func TestASessionThatLocksAgainAndAgainLetsOthersGoFirst(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		// Whatever a waiter sends takes a moment.
		server.SetFault(func(*http.Request) (time.Duration, *http.Response, error) { return time.Millisecond, nil, nil })
		greedy := NewMutex(session(t, server, "a"), "m")
		ctx, cancel := context.WithCancel(t.Context())
		var worker sync.WaitGroup
		worker.Go(func() {
			for ctx.Err() == nil && greedy.Lock(ctx) == nil {
				time.Sleep(50 * time.Millisecond)
				_ = greedy.Unlock(t.Context())
			}
		})
		waiter := NewMutex(session(t, server, "b"), "m")
		for range 20 {
			time.Sleep(rand.N(3 * time.Second))
			begin := time.Now()
			must(t, waiter.Lock(t.Context()))
			if waited := time.Since(begin); waited > 3*time.Second {
				t.Errorf("waited %v", waited)
			}
			must(t, waiter.Unlock(t.Context()))
		}
		cancel()
		worker.Wait()
	})
}
