// Package ops is the contract between step types and the engine.
//
// A step type (Op) declares what must hold: it reads the state as it will be
// after the steps before it and calls Planner.Want for each object it needs.
// It opens no socket and orders nothing. The planner merges the wants of all
// steps, refuses contradictions, raises MTUs bottom-up, and puts the
// differences to what was observed into an order the kernel accepts; a Plan is
// that list of changes, as data. Undo plans the way back from a history of
// changes. See docs/adr/0002 and 0003.
//
// Step types live in the folders below and are listed in ops/all, nowhere else.
package ops
