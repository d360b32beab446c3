package concurrency_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/lessor-dev/lessor/clients/go/concurrency"
	"github.com/lessor-dev/lessor/clients/go/internal/fakeapi"
	"github.com/lessor-dev/lessor/clients/go/lease"
)

// cluster stands for rest.InClusterConfig, so that the examples run without a cluster.
var cluster = fakeapi.New().Config()

func newSession() *concurrency.Session {
	client, err := lease.NewClient(cluster, "default")
	if err != nil {
		panic(err)
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
	if err != nil {
		panic(err)
	}
	return session
}

func ExampleMutex() {
	ctx := context.Background()
	first, second := newSession(), newSession()
	defer first.Close()
	defer second.Close()

	mutex := concurrency.NewMutex(first, "/my-lock/")
	if err := mutex.Lock(ctx); err != nil {
		panic(err)
	}
	// Give the token along with each write, and let the written system reject a smaller one.
	fmt.Println("locked, with a token:", mutex.Token() > 0)

	err := concurrency.NewMutex(second, "/my-lock/").TryLock(ctx)
	fmt.Println("a second session is refused:", errors.Is(err, concurrency.ErrLocked))
	if err := mutex.Unlock(ctx); err != nil {
		panic(err)
	}
	// Output:
	// locked, with a token: true
	// a second session is refused: true
}

func ExampleElection() {
	ctx := context.Background()
	session := newSession()
	defer session.Close()

	election := concurrency.NewElection(session, "/my-election/")
	if err := election.Campaign(ctx, "10.0.0.17:8080"); err != nil {
		panic(err)
	}
	leader, err := election.Leader(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println("the leader is at", leader.Value)
	if err := election.Resign(ctx); err != nil {
		panic(err)
	}
	_, err = election.Leader(ctx)
	fmt.Println(errors.Is(err, concurrency.ErrElectionNoLeader))
	// Output:
	// the leader is at 10.0.0.17:8080
	// true
}
