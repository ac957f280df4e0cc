// Package liveness records which parts of a process are working, so that a part that has
// stopped permanently fails the process's liveness probe, and nothing else does: a part
// that waits for something outside (a runtime, an API server, a device) is alive.
package liveness
