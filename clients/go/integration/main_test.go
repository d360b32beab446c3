// Package integration has the tests on a real API server with a running operator. The test kit runs them: `just go-client-cluster`.
package integration

import (
	"context"
	"os"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lessor-dev/lessor/clients/go/generated/clientset"
	"github.com/lessor-dev/lessor/clients/go/lease"
)

// cluster is how the tests reach the API server.
type cluster struct {
	config    *rest.Config
	namespace string
	core      kubernetes.Interface
	lessor    clientset.Interface
	leases    *lease.Client
}

func connect(t testing.TB) *cluster {
	t.Helper()
	kubeconfig := os.Getenv("LESSOR_TEST_KUBECONFIG")
	if kubeconfig == "" {
		t.Skip("needs an API server and an operator: LESSOR_TEST_KUBECONFIG and LESSOR_TEST_NAMESPACE")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	c := &cluster{config: config, namespace: os.Getenv("LESSOR_TEST_NAMESPACE")}
	c.core, err = kubernetes.NewForConfig(config)
	must(t, err)
	c.lessor, err = clientset.NewForConfig(config)
	must(t, err)
	c.leases = c.client(t)
	return c
}

// client is another client, as another process would have.
func (c *cluster) client(t testing.TB) *lease.Client {
	t.Helper()
	client, err := lease.NewClient(c.config, c.namespace)
	must(t, err)
	return client
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !condition() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("it takes too long until " + what)
		}
	}
}

func (c *cluster) configMapExists(t *testing.T, name string) bool {
	t.Helper()
	_, err := c.core.CoreV1().ConfigMaps(c.namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}
