// Package failures decides which devices are tainted because they are down in a running
// pod, according to the topology's onFailure.
package failures
