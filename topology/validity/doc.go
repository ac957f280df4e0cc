// Package validity answers whether a topology is valid: one answer for the
// command line, the admission webhook, the controller, the node and the rollout.
//
// It is package topology's Validate, and what needs more than the contracts: the
// selectors compiled as the scheduler does, and the number of devices that one
// claim can request. What is not wrong but worth a remark is a note.
package validity
