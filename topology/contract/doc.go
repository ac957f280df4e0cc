// Package contract describes what a step type accepts, needs and produces.
//
// One Contract per step type is the only description of it: strict decoding of a step's
// config, the semantic checks over the graph, the documentation page and the
// CNIPluginSchema object are all derived from it. The package is pure and knows no step
// type by name. Contract.Decode is the main function: it refuses unknown keys with the name
// that was probably meant, folds aliases, checks types, bounds and formats, fills defaults,
// and returns the config in canonical form, so that two spellings of one config compare
// equal. A value that still holds a "{{ step.field }}" reference is checked by the field's
// static type. Contract.Vet is the test every contract must pass.
package contract
