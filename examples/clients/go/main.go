// A service that registers itself under a lease, with client-go's dynamic client.
//
//	go run . web-1 10.0.0.17:8080
//
// Takes KUBECONFIG or the service account of its pod, and NAMESPACE. The exit code is 4 if the lease is lost.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

var (
	leases = schema.GroupVersionResource{Group: "lessor.dev", Version: "v1alpha1", Resource: "leases"}
	maps   = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

	errLost = errors.New("lost")
)

const mapName = "endpoints"

// Lease is a lease that this process holds.
type Lease struct {
	api      dynamic.ResourceInterface
	name     string
	uid      types.UID
	ttl      time.Duration
	deadline time.Time // of the monotonic clock: it's only compared with time.Now()
}

// Grant makes a lease and waits until it's granted.
func Grant(ctx context.Context, api dynamic.ResourceInterface, name string, ttl int64) (*Lease, error) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "lessor.dev/v1alpha1",
		"kind":       "Lease",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"ttlSeconds": ttl, "holder": name},
	}}
	sent := time.Now() // time counts from before the request is sent
	object, err := api.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	lease := &Lease{api: api, name: name, uid: object.GetUID()}
	for !lease.believe(sent, object) {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if object, err = api.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
	}
	return lease, nil
}

// believe takes in what an answer says. What is granted counts, not what was asked for.
func (l *Lease) believe(sent time.Time, object *unstructured.Unstructured) bool {
	granted, found, _ := unstructured.NestedInt64(object.Object, "status", "grantedTTLSeconds")
	if found {
		l.ttl = time.Duration(granted) * time.Second
		l.deadline = sent.Add(l.ttl)
	}
	return found
}

// lostAt is when a lease that isn't renewed counts as lost: early enough to stop in time whatever it stands for.
func (l *Lease) lostAt() time.Time {
	return l.deadline.Add(-l.ttl / 10)
}

// renewAt is a third of the TTL after the grant or the last renewal.
func (l *Lease) renewAt() time.Time {
	return l.deadline.Add(-l.ttl * 2 / 3)
}

// Renew renews once. It fails with errLost if the lease is over.
func (l *Lease) Renew(ctx context.Context) error {
	// No try lasts longer than the lease can be relied on.
	ctx, cancel := context.WithTimeout(ctx, min(2*time.Second, time.Until(l.lostAt())))
	defer cancel()
	// A new time for each try, and the uid: a request that is late renews no other lease of this name.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": l.uid},
		"spec":     map[string]any{"renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")},
	})
	if err != nil {
		return err
	}
	sent := time.Now()
	object, err := l.api.Patch(ctx, l.name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) { // gone; or "lease has ended: grant a new one"
		return fmt.Errorf("%w: %w", errLost, err)
	}
	if err == nil {
		l.believe(sent, object)
	}
	return err
}

// KeepAlive renews at a third of the TTL until ctx is done. It fails before the deadline if that doesn't work.
func (l *Lease) KeepAlive(ctx context.Context) error {
	next := l.renewAt() // counted from the grant, however long it took to get here
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(next)):
		}
		switch err := l.Renew(ctx); {
		case err == nil:
			log.Printf("%s: renewed", l.name)
			next = l.renewAt()
		case errors.Is(err, errLost):
			return err
		case time.Now().After(l.lostAt()):
			return fmt.Errorf("%w: not renewed in time: %w", errLost, err)
		default:
			log.Printf("%s: can't renew, tries again: %v", l.name, err)
			next = time.Now().Add(200 * time.Millisecond)
		}
	}
}

// Revoke ends this lease, and none that was made under its name since.
func (l *Lease) Revoke(ctx context.Context) error {
	return l.api.Delete(ctx, l.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.uid}})
}

// register sets a key and attaches it in one write. The first service makes the ConfigMap.
func register(ctx context.Context, api dynamic.ResourceInterface, lease, key, value string) error {
	entry := map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]any{"name": mapName, "annotations": map[string]any{"key.lessor.dev/" + key: lease}},
		"data":       map[string]any{key: value},
	}
	patch, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	for range 3 {
		if _, err = api.Patch(ctx, mapName, types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		_, err = api.Create(ctx, &unstructured.Unstructured{Object: entry}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return err
}

func run(name, address string) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")) // without one: the pod's service account
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	namespace := cmp.Or(os.Getenv("NAMESPACE"), "default")
	ttl, err := strconv.ParseInt(cmp.Or(os.Getenv("TTL"), "15"), 10, 64)
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()

	lease, err := Grant(ctx, client.Resource(leases).Namespace(namespace), name, ttl)
	if err != nil {
		return err
	}
	log.Printf("%s: granted for %v", name, lease.ttl)
	if err := register(ctx, client.Resource(maps).Namespace(namespace), name, name, address); err != nil {
		return err
	}
	log.Printf("%s: registered", name)
	if err := lease.KeepAlive(ctx); err != nil {
		return err
	}
	if err := lease.Revoke(context.Background()); err != nil {
		return err
	}
	log.Printf("%s: revoked", name)
	return nil
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("give a name and an address, like web-1 10.0.0.17:8080")
	}
	err := run(os.Args[1], os.Args[2])
	if errors.Is(err, errLost) {
		log.Printf("%s: %v", os.Args[1], err)
		os.Exit(4)
	}
	if err != nil {
		log.Fatal(err)
	}
}
