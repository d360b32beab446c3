package concurrency

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lessor-dev/lessor/clients/go/internal/fakeapi"
)

func TestALeaderPublishesItsValueUnderOneToken(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		election := NewElection(session(t, server, "a"), "e")
		observer := NewElection(session(t, server, "b"), "e")
		if _, err := observer.Leader(t.Context()); !errors.Is(err, ErrElectionNoLeader) {
			t.Error(err)
		}
		if err := election.Proclaim(t.Context(), "x"); !errors.Is(err, ErrElectionNotLeader) {
			t.Error(err)
		}
		must(t, election.Campaign(t.Context(), "one"))
		token := election.Token()
		for _, value := range []string{"two", "three"} {
			must(t, election.Proclaim(t.Context(), value))
			leader, err := observer.Leader(t.Context())
			if want := (Leader{value, "a", token}); err != nil || leader != want {
				t.Errorf("%v, %v", leader, err)
			}
		}
		must(t, election.Resign(t.Context()))
		if _, err := observer.Leader(t.Context()); !errors.Is(err, ErrElectionNoLeader) {
			t.Error(err)
		}
		must(t, election.Resign(t.Context()))
	})
}

func TestALeaderWhoseObjectIsGoneLearnsOfItByItsNextProclamation(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		first, second := NewElection(session(t, server, "a"), "e"), NewElection(session(t, server, "b"), "e")
		must(t, first.Campaign(t.Context(), "one"))
		server.End(first.session.Lease().Name())
		must(t, second.Campaign(t.Context(), "two"))
		if err := first.Proclaim(t.Context(), "three"); !errors.Is(err, ErrElectionNotLeader) || first.Held() {
			t.Error(err)
		}
		if leader, err := second.Leader(t.Context()); err != nil || leader.Value != "two" {
			t.Error(leader, err)
		}
		must(t, second.Resign(t.Context()))
	})
}

func TestAnObserverReceivesEachLeaderAndItsValues(t *testing.T) {
	virtual(t, func(t *testing.T, server *fakeapi.Server) {
		first, second := NewElection(session(t, server, "a"), "e"), NewElection(session(t, server, "b"), "e")
		ctx, cancel := context.WithCancel(t.Context())
		leaders := NewElection(session(t, server, "c"), "e").Observe(ctx)
		go func() {
			must(t, first.Campaign(t.Context(), "one"))
			time.Sleep(time.Second)
			must(t, first.Proclaim(t.Context(), "two"))
			time.Sleep(time.Second)
			must(t, first.Resign(t.Context()))
			must(t, second.Campaign(t.Context(), "three"))
		}()
		for _, value := range []string{"one", "two", "three"} {
			if leader := <-leaders; leader.Value != value {
				t.Errorf("%v instead of %s", leader, value)
			}
		}
		cancel()
		synctest.Wait()
		if leader, open := <-leaders; open {
			t.Error(leader)
		}
		must(t, second.Resign(t.Context()))
	})
}
