package admission

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

// Clients other than the API server may reach the webhook's port, so everything is bounded:
// the bytes of one request, those of all requests in progress, and time.
const (
	// maxBody is the most that an API server sends: the new and the old object of 3 MiB
	// each, and the rest of the review.
	maxBody = 7 << 20
	// maxBodies is of all requests at a time; an API server's have some kilobytes.
	maxBodies = 32 << 20
)

// longest is the most that a registration may give the webhook.
const longest = 30 * time.Second

// within is how long the API server waits for an answer, which it says as a parameter of the
// request: timeoutSeconds of the registration, or less if its own caller waits less.
func within(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 {
		return timeout * time.Second
	}
	return min(d, longest)
}

// bounded serves requests within the bounds, and answers others with an HTTP error, so that
// the failure policy decides.
func bounded(next http.Handler) http.Handler {
	bodies := semaphore.NewWeighted(maxBodies)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		size := r.ContentLength
		if size < 0 {
			http.Error(rw, "the request does not say how long it is", http.StatusLengthRequired)
			return
		}
		if size > maxBody {
			http.Error(rw, "the request is too large", http.StatusRequestEntityTooLarge)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), within(r))
		defer cancel()
		// Without a deadline of its own, a client could send a body for as long as it
		// likes. Only a writer in a test does not support deadlines.
		if end, ok := ctx.Deadline(); ok {
			control := http.NewResponseController(rw)
			_ = control.SetReadDeadline(end)
			_ = control.SetWriteDeadline(end.Add(time.Second))
		}
		if err := bodies.Acquire(ctx, size); err != nil {
			http.Error(rw, "too many requests at a time", http.StatusServiceUnavailable)
			return
		}
		defer bodies.Release(size)
		r.Body = http.MaxBytesReader(rw, r.Body, size)
		next.ServeHTTP(rw, r.WithContext(ctx))
	})
}
