// Package liveness records which parts of a process are at work, so that a part
// that has stopped for good fails the process's liveness probe, and nothing else
// does: a part that waits for something outside (a runtime, an API server, a
// device) is alive.
package liveness
