package admission

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// Clients other than the API server may reach the webhook's port, so everything is bounded:
// the bytes of one request, those of all requests in progress, and time. An announced
// body counts for nothing until it comes: it takes no share from other clients.
const (
	// maxBody is the most that an API server sends: the new and the old object of 3 MiB
	// each, and the rest of the review.
	maxBody = 7 << 20
	// maxBodies is of all requests at a time; an API server's have some kilobytes.
	maxBodies = 32 << 20
	// smallBody is the size up to which a body does not compete with larger ones, but with those of its
	// size for maxSmallBodies.
	smallBody      = 64 << 10
	maxSmallBodies = 8 << 20
	// A body is read in parts that grow from one size to the other, each of which has to arrive in
	// time. The memory of a part is reserved before it is read.
	firstPart  = 512
	lastPart   = 64 << 10
	partWithin = time.Second
)

// maxTimeout is the longest that a registration may give the webhook.
const maxTimeout = 30 * time.Second

// within returns how long the API server waits for an answer, by a parameter of the
// request: timeoutSeconds of the registration, or less if its own caller waits less.
func within(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 {
		return timeout * time.Second
	}
	return min(d, maxTimeout)
}

// bounded serves requests within the bounds, and answers others with an HTTP error, so that
// the failure policy decides.
func bounded(next http.Handler) http.Handler {
	large, small := newBudget(maxBodies), newBudget(maxSmallBodies)
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
		bodies := large
		if size <= smallBody {
			bodies = small
		}
		control := http.NewResponseController(rw)
		end, _ := ctx.Deadline()
		_ = control.SetWriteDeadline(end.Add(time.Second)) // only a writer in a test does not support it
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		body := bodies.begin(host, func() { _ = control.SetReadDeadline(time.Unix(1, 0)) })
		defer body.end()
		if err := body.read(ctx, r.Body, int(size)); err != nil {
			code := http.StatusBadRequest
			if errors.Is(err, errBusy) {
				code = http.StatusServiceUnavailable
			}
			http.Error(rw, err.Error(), code)
			return
		}
		defer working(r.Context())()
		r.Body = io.NopCloser(body)
		next.ServeHTTP(rw, r.WithContext(ctx))
	})
}
