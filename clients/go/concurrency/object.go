package concurrency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
	"github.com/lessor-dev/lessor/clients/go/internal/wire"
)

// Keys of the data of a lock object.
const (
	dataName        = "name"
	dataLease       = "lease"
	dataLeaseUID    = "leaseUID"
	dataAcquisition = "acquisition"
	dataHolder      = "holder"
	dataValue       = "value"
	dataToken       = "token"
)

const (
	maxName        = 248
	requestTimeout = 10 * time.Second
)

var plainName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// objectName returns the name of the ConfigMap that is the lock of this name.
func objectName(name string) string {
	if len(name) <= maxName && plainName.MatchString(name) {
		return "lock." + name
	}
	sum := sha256.Sum256([]byte(name))
	return "lock-sha256." + hex.EncodeToString(sum[:])
}

// objects sends the requests for one lock object, each once.
type objects struct {
	session *Session
	name    string
	object  string
}

func (o *objects) prepare(request *rest.Request) *rest.Request {
	return request.Namespace(o.session.Client().Namespace()).Resource("configmaps").MaxRetries(0)
}

func (o *objects) create(ctx context.Context, acquisition, value string) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	held := o.session.Lease()
	body := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:        o.object,
			Annotations: map[string]string{v1alpha1.LeaseAnnotation: held.Name()},
		},
		Data: map[string]string{
			dataName:        o.name,
			dataLease:       held.Name(),
			dataLeaseUID:    string(held.UID()),
			dataAcquisition: acquisition,
			dataHolder:      o.session.holder,
			dataValue:       value,
		},
	}
	ctx, headers := wire.Record(ctx)
	created := &corev1.ConfigMap{}
	request := o.session.configMaps.Post().Param("fieldManager", o.session.Client().FieldManager()).Body(body)
	return created, headers.Explain(o.prepare(request).Do(ctx).Into(created))
}

// get reads the object as it is now, not from a cache of the API server.
func (o *objects) get(ctx context.Context) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ctx, headers := wire.Record(ctx)
	found := &corev1.ConfigMap{}
	return found, headers.Explain(o.prepare(o.session.configMaps.Get()).Name(o.object).Do(ctx).Into(found))
}

// delete deletes the object of this uid, in this version if one is given. Another object of the name is no error.
func (o *objects) delete(ctx context.Context, uid types.UID, resourceVersion string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))}
	if resourceVersion != "" {
		options.Preconditions.ResourceVersion = &resourceVersion
	}
	ctx, headers := wire.Record(ctx)
	err := o.prepare(o.session.configMaps.Delete()).Name(o.object).Body(options).Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return headers.Explain(err)
}

func (o *objects) patch(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request := o.session.configMaps.Patch(types.MergePatchType).Param("fieldManager", o.session.Client().FieldManager())
	ctx, headers := wire.Record(ctx)
	return headers.Explain(o.prepare(request).Name(o.object).Body(body).Do(ctx).Error())
}

// watch shows the changes after a version.
func (o *objects) watch(ctx context.Context, resourceVersion string) (watch.Interface, error) {
	options := &metav1.ListOptions{
		Watch:           true,
		ResourceVersion: resourceVersion,
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, o.object).String(),
	}
	request := o.session.configMaps.Get().VersionedParams(options, scheme.ParameterCodec)
	return o.prepare(request).Watch(ctx)
}
