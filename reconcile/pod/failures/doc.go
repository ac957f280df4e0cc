// Package failures says which devices are to be tainted since they are down in a running
// pod, as the topology's onFailure has it.
package failures
