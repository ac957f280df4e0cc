package admission

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

// Who may reach the webhook's port need not be the API server, so that nothing an
// answer takes is without a bound: bytes of one request and of all that are being
// read or decided, and time.
const (
	// maxBody is what an API server sends at most: the new and the old object of
	// 3 MiB each, and what is around them.
	maxBody = 7 << 20
	// maxBodies is of all requests at a time; an API server's have some kilobytes.
	maxBodies = 32 << 20
)

// bounded serves what fits within the bounds, and answers others with an error of
// HTTP, so that the failure policy decides.
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
		ctx, cancel := context.WithTimeout(r.Context(), timeout*time.Second)
		defer cancel()
		// Without a deadline of its own the reading of a body takes as long as the
		// client likes. A writer that knows no deadlines is not one of the server's.
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
