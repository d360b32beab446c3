// A controller that watches leases with controller-runtime, and reacts when they become active, are about to expire, and end.
//
//	go run . --namespace default
//
// It keeps a ConfigMap, who-is-there, that has the holder of each active lease. Two leases of one name that follow one another
// are told apart by their uid. In a pod it takes the service account, elsewhere KUBECONFIG.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
)

const mapName = "who-is-there"

// state is what a lease means to those who rely on it.
type state string

const (
	pending  state = "Pending"
	active   state = "Active"
	expiring state = "Expiring"
	ended    state = "Ended"
)

func stateOf(lease *v1alpha1.Lease) state {
	switch {
	case lease.Ended():
		return ended
	case lease.Expiring():
		return expiring
	case lease.Active():
		return active
	default:
		return pending
	}
}

// observer reconciles leases.
type observer struct {
	client.Client

	mu   sync.Mutex
	seen map[types.NamespacedName]observation
}

type observation struct {
	uid   types.UID
	state state
}

// Reconcile is called after each change of a lease, at least once for the last one. A lease that ended may be gone by then, so the end
// is also what is left of an observation without a lease.
func (o *observer) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	lease := &v1alpha1.Lease{}
	if err := o.Get(ctx, request.NamespacedName, lease); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	now := observation{lease.UID, ended}
	if lease.UID != "" {
		now.state = stateOf(lease)
	}
	before, known := o.replace(request.NamespacedName, now)
	if known && before.uid != now.uid && before.state != ended {
		o.react(ctx, request.Name, ended, lease)
	}
	if before != now && now.uid != "" {
		o.react(ctx, request.Name, now.state, lease)
	}
	there := now.state == active || now.state == expiring
	return ctrl.Result{}, o.publish(ctx, request.NamespacedName, lease, there)
}

// react is where a controller of your own does its work.
func (o *observer) react(ctx context.Context, name string, to state, lease *v1alpha1.Lease) {
	logger := log.FromContext(ctx).WithValues("state", lease.State(), "uid", lease.UID)
	switch to {
	case active:
		logger.Info("is active: " + name)
	case expiring:
		logger.Info("expires soon unless it is renewed: " + name)
	case ended:
		logger.Info("has ended: " + name)
	}
}

func (o *observer) replace(name types.NamespacedName, now observation) (observation, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, known := o.seen[name]
	if now.uid == "" {
		delete(o.seen, name)
	} else {
		o.seen[name] = now
	}
	return before, known
}

// publish keeps the entry of a lease in the ConfigMap of its namespace.
func (o *observer) publish(ctx context.Context, name types.NamespacedName, lease *v1alpha1.Lease, there bool) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: mapName}}
	if !there {
		err := o.Get(ctx, client.ObjectKeyFromObject(object), object)
		if _, listed := object.Data[name.Name]; err != nil || !listed {
			return client.IgnoreNotFound(err)
		}
	}
	_, err := controllerutil.CreateOrUpdate(ctx, o.Client, object, func() error {
		data := maps.Clone(object.Data)
		if data == nil {
			data = map[string]string{}
		}
		delete(data, name.Name)
		if there {
			data[name.Name] = holderOf(lease)
		}
		object.Data = data
		return nil
	})
	return err
}

func holderOf(lease *v1alpha1.Lease) string {
	if lease.Spec.Holder == nil {
		return ""
	}
	return *lease.Spec.Holder
}

func newManager(namespace string) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	options := ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}}
	if namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	return ctrl.NewManager(config, options)
}

func run(namespace string) error {
	manager, err := newManager(namespace)
	if err != nil {
		return err
	}
	observer := &observer{Client: manager.GetClient(), seen: map[types.NamespacedName]observation{}}
	// Without a predicate on the generation: what matters here is in the status.
	if err := ctrl.NewControllerManagedBy(manager).For(&v1alpha1.Lease{}).Named("observer").Complete(observer); err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

func main() {
	namespace := flag.String("namespace", "", "the namespace to watch; all if it is empty")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(*namespace); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
