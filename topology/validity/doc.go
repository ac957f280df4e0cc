// Package validity decides whether a topology is valid, in the same way for the
// command line, the admission webhook, the controller, the node and the rollout.
//
// It adds to package topology's Validate what needs more than the contracts: the selectors
// compiled as the scheduler does, and the number of devices that one claim can request.
// Remarks on a valid topology are notes.
package validity
