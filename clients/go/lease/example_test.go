package lease_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"

	"github.com/lessor-dev/lessor/clients/go/internal/fakeapi"
	"github.com/lessor-dev/lessor/clients/go/lease"
)

// inCluster stands for rest.InClusterConfig, so that the examples run without a cluster.
func inCluster() *rest.Config {
	return fakeapi.New().Config()
}

// A service registers itself for as long as it lives.
func Example() {
	ctx := context.Background()
	client, err := lease.NewClient(inCluster(), "default")
	if err != nil {
		panic(err)
	}
	held, err := client.Grant(ctx, "web-1", 15*time.Second, lease.Holder("web-1"))
	if err != nil {
		panic(err)
	}
	fmt.Println("granted for", held.TTL())
	kept := held.KeepAlive()

	stop := time.After(10 * time.Millisecond) // or a signal
	select {
	case <-kept.Done():
		fmt.Println("stop what the lease stands for:", kept.Err())
	case <-stop:
		if err := kept.Stop().Revoke(ctx); err != nil {
			panic(err)
		}
		fmt.Println("revoked")
	}
	// Output:
	// granted for 15s
	// revoked
}

// The work that a lease protects ends with the lease.
func ExampleKeepAlive_Context() {
	client, err := lease.NewClient(inCluster(), "default")
	if err != nil {
		panic(err)
	}
	held, err := client.Grant(context.Background(), "report", 15*time.Second)
	if err != nil {
		panic(err)
	}
	kept := held.KeepAlive()
	ctx, cancel := kept.Context(context.Background())
	defer cancel()

	// Another user revokes it.
	if err := client.Revoke(context.Background(), "report", ""); err != nil {
		panic(err)
	}
	<-ctx.Done()
	var lost *lease.LostError
	fmt.Println(errors.As(context.Cause(ctx), &lost))
	// Output: true
}

func ExampleClient_Grant_exists() {
	ctx := context.Background()
	client, err := lease.NewClient(inCluster(), "default")
	if err != nil {
		panic(err)
	}
	if _, err := client.Grant(ctx, "web-1", time.Minute); err != nil {
		panic(err)
	}
	_, err = client.Grant(ctx, "web-1", time.Minute)
	fmt.Println(errors.Is(err, lease.ErrExists))
	// Output: true
}

func ExampleNewSession() {
	client, err := lease.NewClient(inCluster(), "default")
	if err != nil {
		panic(err)
	}
	session, err := lease.NewSession(context.Background(), client, 15*time.Second)
	if err != nil {
		panic(err)
	}
	defer session.Close()
	fmt.Println(session.Alive())
	// Output: true
}
