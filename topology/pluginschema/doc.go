// Package pluginschema converts between a CNIPluginSchema and a contract.Contract.
//
// FromContract writes the contract of a built-in step type, so that kubectl get
// cnipluginschema bond -o yaml documents it. Contract reads a schema that others have added
// for a type of theirs, and Known joins both into the set that validation works on. A
// built-in type cannot be redefined: the node runs what it has, whatever a schema contains. A
// schema expresses less than a contract (no rule between two keys, no shorthand), so a
// built-in type is always validated by its contract and never by the object written from
// it. The package is pure.
package pluginschema
