package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
)

func TestTheConfigMapHasTheHoldersOfActiveLeases(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	holder := "alice"
	lease := &v1alpha1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "1"},
		Spec:       v1alpha1.LeaseSpec{TTLSeconds: 10, Holder: &holder},
	}
	server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(lease).WithStatusSubresource(lease).Build()
	observer := &observer{Client: server, seen: map[types.NamespacedName]observation{}}
	name := client.ObjectKeyFromObject(lease)
	check := func(there bool) {
		t.Helper()
		if _, err := observer.Reconcile(t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}
		object := &corev1.ConfigMap{}
		err := server.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: mapName}, object)
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if _, listed := object.Data["a"]; listed != there {
			t.Errorf("listed: %v", listed)
		}
	}
	set := func(change func()) {
		t.Helper()
		change()
		if err := server.Status().Update(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
	}
	condition := func(kind string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Granted", LastTransitionTime: metav1.Now()}
	}
	check(false)
	set(func() { lease.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionActive)} })
	check(true)
	set(func() {
		lease.Status.Conditions = append(lease.Status.Conditions, condition(v1alpha1.ConditionExpiring))
	})
	check(true)
	if state := observer.seen[name].state; state != expiring {
		t.Error(state)
	}
	set(func() { lease.Status.EndTime = &metav1.MicroTime{Time: time.Now()} })
	check(false)
	if err := server.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	check(false)
	if len(observer.seen) != 0 {
		t.Error(observer.seen)
	}
}
