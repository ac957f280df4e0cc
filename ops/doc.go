// Package ops is the contract between step types and the engine.
//
// A step type (Op) declares the desired state: it reads the state as it will be
// after the steps before it and calls Planner.Want for each object it needs.
// It opens no socket and orders no changes. The planner merges the wants of all
// steps, refuses contradictions, raises MTUs bottom-up, and puts the
// differences to the observed state into an order that the kernel accepts; a Plan
// is that list of changes, as data. Undo plans how a history of changes is undone.
// See docs/adr/0002 and 0003.
//
// Step types live in the folders below and are listed in ops/all, nowhere else.
package ops
