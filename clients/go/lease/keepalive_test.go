package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lessor-dev/lessor/clients/go/internal/clock"
	"github.com/lessor-dev/lessor/clients/go/internal/fakeapi"
)

func init() {
	clock.Now = func() int64 { return time.Now().UnixNano() }
}

// virtual runs a test in virtual time, with a client of a server in memory.
func virtual(t *testing.T, test func(t *testing.T, server *fakeapi.Server, client *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := fakeapi.New()
		client, err := NewClient(server.Config(), fakeapi.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		// The watch ends a while after its last subscriber.
		t.Cleanup(func() { time.Sleep(2 * watchLinger) })
		test(t, server, client)
	})
}

func granted(t *testing.T, client *Client, name string, ttl time.Duration) *Lease {
	t.Helper()
	lease, err := client.Grant(t.Context(), name, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func count(server *fakeapi.Server, request string) int {
	n := 0
	for _, sent := range server.Requests() {
		if sent == request {
			n++
		}
	}
	return n
}

var errUnreachable = errors.New("connection refused")

func reasonOf(t *testing.T, kept *KeepAlive) Reason {
	t.Helper()
	var lost *LostError
	if !errors.As(kept.Err(), &lost) {
		t.Fatalf("the lease isn't lost: %v", kept.Err())
	}
	return lost.Reason
}

func TestALeaseIsRenewedAtAThirdOfItsTTL(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		kept := granted(t, client, "a", 9*time.Second).KeepAlive()
		time.Sleep(300 * time.Second)
		if n := count(server, "PATCH leases/a"); n < 90 || n > 112 {
			t.Errorf("%d renewals in 300 s", n)
		}
		if !kept.Alive() || !server.Exists("leases/a") {
			t.Error("the lease isn't alive")
		}
		if err := kept.Stop().Revoke(t.Context()); err != nil {
			t.Error(err)
		}
		if server.Exists("leases/a") || !errors.Is(kept.Err(), ErrStopped) {
			t.Error("not revoked")
		}
	})
}

func TestALeaseThatCannotBeRenewedIsLostBeforeTheServerEndsIt(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		kept := granted(t, client, "a", 10*time.Second).KeepAlive()
		time.Sleep(20 * time.Second)
		var tries atomic.Int64
		server.SetFault(func(*http.Request) (time.Duration, *http.Response, error) {
			tries.Add(1)
			return 0, nil, errUnreachable
		})
		<-kept.Done()
		left := time.Until(server.Deadline("a"))
		if left < time.Second || left > 2*time.Second {
			t.Errorf("lost %v before its end", left)
		}
		if reason := reasonOf(t, kept); reason != NotRenewed || !errors.Is(kept.Err(), ErrNoResponse) {
			t.Errorf("%v: %v", reason, kept.Err())
		}
		if n := tries.Load(); n < 5 || n > 20 {
			t.Errorf("%d tries", n)
		}
	})
}

func TestTheTTLCountsFromBeforeARequestAndNotFromItsAnswer(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		lease := granted(t, client, "a", 10*time.Second)
		server.SetFault(func(*http.Request) (time.Duration, *http.Response, error) { return 4 * time.Second, nil, nil })
		sent := Now()
		if err := lease.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if deadline := lease.Deadline(); deadline != sent.Add(10*time.Second) {
			t.Errorf("deadline %v after the request", deadline.Sub(sent))
		}
	})
}

func TestARenewalThatHangsIsRepeatedAndTheLeaseLivesOn(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		kept := granted(t, client, "a", 12*time.Second).KeepAlive()
		var hung atomic.Bool
		server.SetFault(func(request *http.Request) (time.Duration, *http.Response, error) {
			if request.Method == http.MethodPatch && !hung.Swap(true) {
				return time.Hour, nil, nil
			}
			return 0, nil, nil
		})
		time.Sleep(40 * time.Second)
		if !kept.Alive() || !hung.Load() {
			t.Error(kept.Err())
		}
		kept.Stop()
		time.Sleep(time.Hour)
	})
}

func TestARevokedLeaseIsLostAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		kept := granted(t, client, "a", time.Hour).KeepAlive()
		time.Sleep(time.Second)
		server.Change("leases/a", map[string]any{"metadata": map[string]any{"deletionTimestamp": "2026-01-01T00:00:00Z"}})
		synctest.Wait()
		if reason := reasonOf(t, kept); reason != Revoked {
			t.Error(reason)
		}
	})
}

func TestWhatHappensToALeaseBeforeItIsKeptAliveIsNoticed(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		// The watch of another lease is open all the time.
		other := granted(t, client, "other", time.Hour).KeepAlive()
		revoked, gone := granted(t, client, "revoked", time.Hour), granted(t, client, "gone", time.Hour)
		server.Change("leases/revoked", map[string]any{"metadata": map[string]any{"deletionTimestamp": "2026-01-01T00:00:00Z"}})
		server.End("gone")
		time.Sleep(time.Second)
		keptRevoked, keptGone := revoked.KeepAlive(), gone.KeepAlive()
		time.Sleep(time.Second)
		if reason := reasonOf(t, keptRevoked); reason != Revoked {
			t.Error(reason)
		}
		if reason := reasonOf(t, keptGone); reason != Gone && reason != Ended {
			t.Error(reason)
		}
		if !other.Alive() {
			t.Error(other.Err())
		}
		other.Stop()
	})
}

func TestALeaseThatIsDeletedWithoutATraceIsLostAfterOneRenewal(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		kept := granted(t, client, "a", time.Hour).KeepAlive()
		time.Sleep(time.Second)
		server.End("a")
		synctest.Wait()
		if reason := reasonOf(t, kept); reason != Gone {
			t.Error(reason)
		}
		if n := count(server, "PATCH leases/a"); n != 1 {
			t.Errorf("%d renewals", n)
		}
	})
}

func TestALeaseThatLosesItsLabelIsKept(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		kept := granted(t, client, "a", 30*time.Second).KeepAlive()
		time.Sleep(time.Second)
		server.Change("leases/a", map[string]any{"metadata": map[string]any{"labels": nil}})
		time.Sleep(time.Minute)
		if !kept.Alive() {
			t.Error(kept.Err())
		}
		kept.Stop()
	})
}

func TestALaterLeaseOfTheNameIsNotRenewed(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		first := granted(t, client, "a", 10*time.Second)
		server.End("a")
		other, err := NewClient(server.Config(), fakeapi.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		granted(t, other, "a", 10*time.Second)
		deadline := server.Deadline("a")
		time.Sleep(time.Second)
		if err := first.Renew(t.Context()); !errors.Is(err, ErrReplaced) {
			t.Error(err)
		}
		if err := first.Revoke(t.Context()); err != nil || !server.Exists("leases/a") {
			t.Error("the other lease was revoked", err)
		}
		if !server.Deadline("a").Equal(deadline) {
			t.Error("the other lease was renewed")
		}
	})
}

func TestRetryAfterIsObeyedAsFarAsTheDeadlineAllows(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		kept := granted(t, client, "a", 30*time.Second).KeepAlive()
		var tries []time.Time
		server.SetFault(func(request *http.Request) (time.Duration, *http.Response, error) {
			if request.Method != http.MethodPatch {
				return 0, nil, nil
			}
			tries = append(tries, time.Now())
			response := fakeapi.Status(429, "TooManyRequests", "a", "slow down", "")
			response.Header.Set("Retry-After", "5")
			return 0, response, nil
		})
		<-kept.Done()
		if len(tries) < 3 {
			t.Fatalf("%d tries", len(tries))
		}
		if pause := tries[1].Sub(tries[0]); pause < 5*time.Second || pause > 6*time.Second {
			t.Errorf("the second try came after %v", pause)
		}
		if len(tries) > 20 {
			t.Errorf("%d tries", len(tries))
		}
	})
}

func TestAThousandLeasesShareOneWatchAndItEndsWithThem(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		var kept []*KeepAlive
		for range 1000 {
			kept = append(kept, granted(t, client, "lease-"+randomID(), time.Minute).KeepAlive())
		}
		time.Sleep(5 * time.Minute)
		if n := server.Watches("leases"); n != 1 {
			t.Errorf("%d watches", n)
		}
		for _, kept := range kept {
			if !kept.Alive() {
				t.Error(kept.Err())
			}
			kept.Stop()
		}
		time.Sleep(2 * watchLinger)
		if n := server.Watches("leases"); n != 0 {
			t.Errorf("%d watches are left", n)
		}
	})
}

// A holder never believes longer than the server, whatever is lost, late or refused.
func TestNoHolderBelievesLongerThanTheServer(t *testing.T) {
	for range 15 {
		virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
			lease := granted(t, client, "a", time.Duration(5+rand.N(20))*time.Second)
			kept := lease.KeepAlive()
			bad := rand.Float64() * 0.9
			server.SetFault(func(request *http.Request) (time.Duration, *http.Response, error) {
				if rand.Float64() > bad {
					return 0, nil, nil
				}
				switch rand.N(4) {
				case 0:
					return 0, nil, errUnreachable
				case 1:
					return 0, fakeapi.Status(503, "ServiceUnavailable", "a", "later", ""), nil
				default:
					return rand.N(30 * time.Second), nil, nil
				}
			})
			for range 10_000 {
				time.Sleep(10 * time.Millisecond)
				if kept.Alive() && !server.Exists("leases/a") {
					t.Fatal("the holder believes, and the lease has ended")
				}
				if kept.Err() != nil {
					break
				}
			}
			kept.Stop()
			server.SetFault(nil)
			time.Sleep(time.Minute)
		})
	}
}

func TestAHungCredentialPluginDoesNotDelayTheLoss(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		kept := granted(t, client, "a", 10*time.Second).KeepAlive()
		released := make(chan struct{})
		server.SetFault(func(request *http.Request) (time.Duration, *http.Response, error) {
			<-released // whatever the context says
			return 0, nil, errUnreachable
		})
		<-kept.Done()
		if !server.Exists("leases/a") {
			t.Error("the lease has ended before")
		}
		close(released)
	})
}

func TestAGrantThatTheOperatorDoesNotGiveNamesTheOperator(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server, client *Client) {
		server.NoOperator = true
		begin := time.Now()
		_, err := client.Grant(t.Context(), "a", 10*time.Second, Wait(4*time.Second))
		if !errors.Is(err, ErrNotGranted) || !strings.Contains(err.Error(), "operator is running") {
			t.Error(err)
		}
		if waited := time.Since(begin); waited != 4*time.Second {
			t.Errorf("waited %v", waited)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := client.Grant(ctx, "b", 10*time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
