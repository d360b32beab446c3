package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// maxAttempts is the maximum number of attempts while other writers change the same object.
const maxAttempts = 100

// Target is an object to attach, in the namespace of the lease.
type Target struct {
	Resource schema.GroupVersionResource
	Name     string
}

// ConfigMap is the ConfigMap of this name.
func ConfigMap(name string) Target {
	return Target{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, name}
}

// Secret is the Secret of this name. The operator must be configured to watch Secrets.
func Secret(name string) Target {
	return Target{schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, name}
}

// hasData reports whether the keys of the object are those of its data. The keys of all others are JSON Pointers.
func (t Target) hasData() bool {
	return t.Resource.Group == "" && (t.Resource.Resource == "configmaps" || t.Resource.Resource == "secrets")
}

// Attach attaches keys of an object to a lease, or the whole object if no keys are given. Attachments of the same object or keys to
// other leases are removed. In a ConfigMap or Secret, a key is a key of its data; in any other object, a JSON Pointer.
//
// The lease and the keys may be created later. Nothing is removed as long as the lease doesn't exist.
func (c *Client) Attach(ctx context.Context, lease string, target Target, keys ...string) error {
	return c.annotate(ctx, target, func(annotations map[string]string) (changes, error) {
		return attaching(annotations, target.hasData(), lease, keys)
	})
}

// Detach detaches keys of an object from a lease; without keys, the object and all its keys.
func (c *Client) Detach(ctx context.Context, lease string, target Target, keys ...string) error {
	return c.annotate(ctx, target, func(annotations map[string]string) (changes, error) {
		return detaching(annotations, lease, keys)
	})
}

// Attach attaches keys of an object, or the whole object, to this lease: see [Client.Attach].
func (l *Lease) Attach(ctx context.Context, target Target, keys ...string) error {
	return l.client.Attach(ctx, l.name, target, keys...)
}

// Detach detaches keys of an object, or everything of it, from this lease: see [Client.Detach].
func (l *Lease) Detach(ctx context.Context, target Target, keys ...string) error {
	return l.client.Detach(ctx, l.name, target, keys...)
}

// annotate reads an object, and applies the changes that decide returns, on condition that the object is unchanged.
func (c *Client) annotate(ctx context.Context, target Target, decide func(map[string]string) (changes, error)) error {
	objects := c.metadata.Resource(target.Resource).Namespace(c.namespace)
	for attempt := 1; ; attempt++ {
		object, err := objects.Get(ctx, target.Name, metav1.GetOptions{})
		if err != nil {
			return explain(err)
		}
		changes, err := decide(object.Annotations)
		if err != nil {
			return fmt.Errorf("annotations of %s %q: %w", target.Resource.Resource, target.Name, err)
		}
		if len(changes) == 0 {
			return nil
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": object.UID, "resourceVersion": object.ResourceVersion, "annotations": changes,
		}})
		if err != nil {
			return err
		}
		options := metav1.PatchOptions{FieldManager: c.manager}
		_, err = objects.Patch(ctx, target.Name, types.MergePatchType, patch, options)
		if !apierrors.IsConflict(err) || attempt == maxAttempts {
			return explain(err)
		}
		// A random delay, so that writers that collided don't collide again.
		if err := sleep(ctx, rand.N(10*time.Millisecond)); err != nil {
			return err
		}
	}
}
