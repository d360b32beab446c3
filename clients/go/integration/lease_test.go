package integration

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
	apply "github.com/lessor-dev/lessor/clients/go/generated/applyconfiguration/api/v1alpha1"
	"github.com/lessor-dev/lessor/clients/go/generated/informers"
	"github.com/lessor-dev/lessor/clients/go/lease"
)

func TestALeaseIsKeptAliveBeyondItsTTLAndEndsWithWhatIsAttached(t *testing.T) {
	c := connect(t)
	held, err := c.leases.Grant(t.Context(), "go-kept", 5*time.Second, lease.Holder("go"), lease.WarnBefore(time.Second))
	must(t, err)
	if held.FencingToken() == 0 || held.TTL() != 5*time.Second {
		t.Errorf("token %d, TTL %v", held.FencingToken(), held.TTL())
	}
	maps := c.core.CoreV1().ConfigMaps(c.namespace)
	data := map[string]string{"web-1": "10.0.0.1", ".hidden": "x", "left": "y"}
	for _, name := range []string{"go-whole", "go-keys", "go-detached"} {
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
		must(t, err)
	}
	must(t, held.Attach(t.Context(), lease.ConfigMap("go-whole")))
	must(t, held.Attach(t.Context(), lease.ConfigMap("go-keys"), "web-1", ".hidden"))
	must(t, held.Attach(t.Context(), lease.ConfigMap("go-detached")))
	must(t, held.Detach(t.Context(), lease.ConfigMap("go-detached")))

	kept := held.KeepAlive()
	time.Sleep(8 * time.Second)
	if !kept.Alive() || !c.configMapExists(t, "go-whole") {
		t.Fatalf("the lease isn't alive: %v", kept.Err())
	}
	must(t, kept.Stop().Revoke(t.Context()))
	must(t, c.leases.WaitGone(t.Context(), "go-kept"))
	if c.configMapExists(t, "go-whole") || !c.configMapExists(t, "go-detached") {
		t.Error("what is attached goes with its lease, and nothing else")
	}
	keys, err := maps.Get(t.Context(), "go-keys", metav1.GetOptions{})
	must(t, err)
	if len(keys.Data) != 1 || keys.Data["left"] != "y" {
		t.Errorf("left are %v", keys.Data)
	}
	must(t, held.Revoke(t.Context()))
}

func TestARevokedLeaseIsLostAtOnce(t *testing.T) {
	c := connect(t)
	held, err := c.leases.Grant(t.Context(), "go-revoked", time.Hour)
	must(t, err)
	kept := held.KeepAlive()
	must(t, c.client(t).Revoke(t.Context(), "go-revoked", ""))
	select {
	case <-kept.Done():
	case <-time.After(2 * time.Second):
		t.Fatal("not noticed within 2 s")
	}
	var lost *lease.LostError
	if !errors.As(kept.Err(), &lost) || lost.Reason == lease.NotRenewed || kept.Alive() {
		t.Error(kept.Err())
	}
}

func TestEachErrorSaysWhatItMeans(t *testing.T) {
	c := connect(t)
	held, err := c.leases.Grant(t.Context(), "go-errors", 5*time.Second, lease.Retain())
	must(t, err)
	if _, err := c.leases.Grant(t.Context(), "go-errors", time.Minute); !errors.Is(err, lease.ErrExists) || !strings.Contains(err.Error(), "go-errors") {
		t.Error(err)
	}
	until(t, "the lease has ended", func() bool {
		found, err := c.leases.Get(t.Context(), "go-errors")
		must(t, err)
		return found.Ended()
	})
	if err := held.Renew(t.Context()); !errors.Is(err, lease.ErrEnded) || !strings.Contains(err.Error(), "grant a new one") {
		t.Error(err)
	}
	must(t, held.Revoke(t.Context()))
	must(t, c.leases.WaitGone(t.Context(), "go-errors"))
	if err := held.Renew(t.Context()); !errors.Is(err, lease.ErrGone) || !strings.Contains(err.Error(), "go-errors") {
		t.Error(err)
	}
	next, err := c.leases.Grant(t.Context(), "go-errors", time.Minute)
	must(t, err)
	if err := held.Renew(t.Context()); !errors.Is(err, lease.ErrReplaced) {
		t.Error(err)
	}
	if err := c.leases.Revoke(t.Context(), "go-errors", held.UID()); !errors.Is(err, lease.ErrReplaced) {
		t.Error(err)
	}
	if next.FencingToken() <= held.FencingToken() {
		t.Error("the token doesn't grow")
	}
	must(t, next.Revoke(t.Context()))
	if _, err := c.leases.Grant(t.Context(), "Not A Name", time.Minute); err == nil || lease.IsTemporary(err) {
		t.Error(err)
	}
}

func TestGeneratedClientsApplyListAndWatchLeases(t *testing.T) {
	c := connect(t)
	leases := c.lessor.LessorV1alpha1().Leases(c.namespace)
	factory := informers.NewSharedInformerFactoryWithOptions(c.lessor, 0, informers.WithNamespace(c.namespace))
	watched := factory.Lessor().V1alpha1().Leases()
	active := make(chan string, 100)
	_, err := watched.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, object any) {
		if found := object.(*v1alpha1.Lease); found.Active() {
			active <- found.Name
		}
	}})
	must(t, err)
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())

	wanted := apply.Lease("go-applied", c.namespace).WithSpec(apply.LeaseSpec().WithTTLSeconds(60).WithHolder("go"))
	_, err = leases.Apply(t.Context(), wanted, metav1.ApplyOptions{FieldManager: "go", Force: true})
	must(t, err)
	for name := range active {
		if name == "go-applied" {
			break
		}
	}
	found, err := watched.Lister().Leases(c.namespace).Get("go-applied")
	must(t, err)
	if found.State() != v1alpha1.ReasonGranted || *found.Status.GrantedTTLSeconds != 60 {
		t.Errorf("%+v", found.Status)
	}
	all, err := watched.Lister().List(labels.Everything())
	if err != nil || len(all) == 0 {
		t.Error(all, err)
	}
	lessors, err := c.lessor.LessorV1alpha1().Lessors().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if !slices.ContainsFunc(lessors.Items, func(l v1alpha1.Lessor) bool { return l.Status.Primary != nil && l.Status.Term != nil }) {
		t.Errorf("%+v", lessors.Items)
	}
	must(t, c.leases.Revoke(t.Context(), "go-applied", found.UID))
}
