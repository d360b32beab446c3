package lease

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lessor-dev/lessor/clients/go/api/v1alpha1"
)

// Kinds of errors, for errors.Is. Errors of the API server that are none of these, such as 403 Forbidden, can be examined with
// package k8s.io/apimachinery/pkg/api/errors, and so can these.
var (
	// ErrExists means that a lease of this name exists, perhaps one that has ended and isn't released yet.
	ErrExists = errors.New("lease exists")
	// ErrEnded means that the lease has ended, and can't be renewed.
	ErrEnded = errors.New("lease has ended")
	// ErrGone means that the object doesn't exist.
	ErrGone = errors.New("not found")
	// ErrReplaced means that the lease is gone, and another of its name exists.
	ErrReplaced = errors.New("lease is replaced")
	// ErrNotGranted means that the operator didn't grant the lease in time.
	ErrNotGranted = errors.New("lease is not granted")
	// ErrNotInstalled means that the API server doesn't serve leases of lessor.dev.
	ErrNotInstalled = errors.New("not installed")
	// ErrNoResponse means that no response arrived. The request may have had its effect.
	ErrNoResponse = errors.New("no response")
)

// Error is an error of one of the kinds above, with a message for people and the API server's error where there is one.
type Error struct {
	kind    error
	message string
	cause   error
}

func (e *Error) Error() string {
	return e.message
}

// Unwrap returns the kind and the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.cause}
}

// IsTemporary reports whether another attempt may succeed without anything else being changed.
func IsTemporary(err error) bool {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, ErrNoResponse):
		return true
	case errors.As(err, &status):
		code := status.Status().Code
		// A credential that has expired is replaced after the API server has rejected it.
		return code == http.StatusUnauthorized || code == http.StatusTooManyRequests || code >= 500 ||
			apierrors.IsConflict(err)
	default:
		return false
	}
}

// explain adds to an error what kind it is of, and what its reader can do about it.
func explain(err error) error {
	if err == nil {
		return nil
	}
	var api apierrors.APIStatus
	if !errors.As(err, &api) {
		return &Error{ErrNoResponse, "no response from the API server: " + err.Error(), err}
	}
	status := api.Status()
	switch code := status.Code; {
	case code == http.StatusNotFound && (status.Details == nil || status.Details.Name == ""):
		return &Error{ErrNotInstalled,
			"Lessor is not installed in this cluster: install its Helm chart, or apply deploy/lessor.yaml", err}
	case code == http.StatusNotFound:
		return &Error{ErrGone, status.Message, err}
	case apierrors.IsAlreadyExists(err):
		return &Error{ErrExists, status.Message + ": wait until it is gone, or use another name", err}
	case code == http.StatusUnprocessableEntity && concernsUID(status):
		return replaced(err)
	case code == http.StatusUnprocessableEntity && strings.Contains(status.Message, v1alpha1.EndedMessage):
		return &Error{ErrEnded, v1alpha1.EndedMessage, err}
	case code == http.StatusForbidden && strings.Contains(status.Message, "."+v1alpha1.GroupName):
		return fmt.Errorf("%w: the cluster roles lessor-view and lessor-edit have the rights on leases", err)
	default:
		return err
	}
}

func replaced(cause error) error {
	message := "the lease is gone, and another lease of this name exists: grant a lease with another name"
	return &Error{ErrReplaced, message, cause}
}

func concernsUID(status metav1.Status) bool {
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			if cause.Field == "metadata.uid" {
				return true
			}
		}
	}
	return false
}

func isNotFound(err error) bool {
	return errors.Is(err, ErrGone)
}

// Reason is why a lease was lost.
type Reason string

// The reasons why a lease is lost.
const (
	// Ended means that the lease has ended.
	Ended Reason = "ended"
	// Revoked means that a user has deleted it.
	Revoked Reason = "revoked"
	// Gone means that it doesn't exist any more.
	Gone Reason = "gone"
	// Replaced means that another lease has its name.
	Replaced Reason = "replaced"
	// MaxLifetime means that it has reached its maximum lifetime.
	MaxLifetime Reason = "max-lifetime"
	// NotRenewed means that it couldn't be renewed in time. On the server it may live longer, but the holder can't rely on
	// that.
	NotRenewed Reason = "not-renewed"
)

// LostError is why a holder has lost its lease.
type LostError struct {
	Reason Reason
	// Err is the last error of a renewal, if there was one.
	Err error
}

func (e *LostError) Error() string {
	switch e.Reason {
	case Ended:
		return v1alpha1.EndedMessage
	case Revoked:
		return "the lease was revoked: grant a new one"
	case Gone:
		return "the lease is gone: grant a new one"
	case Replaced:
		return "the lease is gone, and another lease of this name exists"
	case MaxLifetime:
		return "the lease has reached its maximum lifetime: grant a new one"
	default:
		if e.Err == nil {
			return "the lease could not be renewed in time"
		}
		return "the lease could not be renewed in time: " + e.Err.Error()
	}
}

func (e *LostError) Unwrap() error {
	return e.Err
}

// lossOf returns the loss that an error of a renewal implies, or nil if another attempt may succeed.
func lossOf(err error) *LostError {
	switch {
	case errors.Is(err, ErrEnded):
		return &LostError{Ended, err}
	case errors.Is(err, ErrGone):
		return &LostError{Gone, err}
	case errors.Is(err, ErrReplaced):
		return &LostError{Replaced, err}
	default:
		return nil
	}
}
