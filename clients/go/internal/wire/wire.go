// Package wire gives access to headers of answers, which client-go doesn't return.
package wire

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Headers are the headers of one answer.
type Headers struct {
	// Date is the API server's clock, rounded down to the second; zero if unknown.
	Date time.Time
	// RetryAfter is how long the API server asks to wait.
	RetryAfter time.Duration
}

type key struct{}

// Record returns a context for one request, after which the headers are set.
func Record(ctx context.Context) (context.Context, *Headers) {
	headers := &Headers{}
	return context.WithValue(ctx, key{}, headers), headers
}

type recorder struct {
	inner http.RoundTripper
}

// Wrap is the layer of the transport that records headers.
func Wrap(inner http.RoundTripper) http.RoundTripper {
	return recorder{inner}
}

func (r recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.inner.RoundTrip(request)
	if headers, ok := request.Context().Value(key{}).(*Headers); ok && err == nil {
		if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			headers.Date = date
		}
		if wait, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
			headers.RetryAfter = time.Duration(wait) * time.Second
		}
	}
	return response, err
}

// WrappedRoundTripper lets client-go reach the transport below.
func (r recorder) WrappedRoundTripper() http.RoundTripper {
	return r.inner
}

type delayed struct {
	error
	wait time.Duration
}

func (d delayed) Unwrap() error {
	return d.error
}

// Explain adds to an error how long the API server asks to wait.
func (h *Headers) Explain(err error) error {
	if err == nil || h.RetryAfter <= 0 {
		return err
	}
	return delayed{err, h.RetryAfter}
}

// RetryAfter is how long the API server asked to wait by this error.
func RetryAfter(err error) time.Duration {
	var header delayed
	if errors.As(err, &header) {
		return header.wait
	}
	wait, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(wait) * time.Second
}
