// Package eventually waits in tests for what another goroutine, process or the kernel brings about, and for which there
// is no notification.
package eventually
